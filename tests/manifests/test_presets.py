"""The presets that are shipped, and the model that each of them must be."""

import json
from importlib.resources import files

import pytest
from pydantic import ValidationError

from anespec.manifests.presets import NO_PRESET, Preset, find_preset, preset_names, presets
from anespec.manifests.schema import Target, WeightFormat

PHI = find_preset("phi-4-mini")


def test_a_file_is_named_after_its_preset_and_all_are_read() -> None:
    assert preset_names() == tuple(presets())
    assert NO_PRESET not in presets()
    assert "phi-4-mini" in presets()


def test_every_preset_says_where_it_comes_from() -> None:
    for preset in presets().values():
        assert sum(preset.topology) == preset.model.layers
        provenance = preset.provenance
        assert min(map(len, (provenance.source, provenance.measured, provenance.machine))) > 3


def test_two_presets_never_match_one_model() -> None:
    keys = [(p.model, p.target, p.weights) for p in presets().values()]
    assert len(keys) == len(set(keys))


def test_differences_name_what_differs() -> None:
    assert PHI.differences(PHI.model, Target.MAC, WeightFormat.INT8_CHANNEL) == ()
    other = PHI.model.model_copy(update={"d": 64})
    assert PHI.differences(other, Target.CPU, WeightFormat.INT8_CHANNEL) == (
        "d 3072 there, 64 here",
        "target mac there, cpu here",
    )


@pytest.mark.parametrize(
    "change",
    [{"topology": [20, 4, 6]}, {"topology": [32, 0]}, {"grade": "B"}, {"name": "Phi 4"}, {"block": 0}],
)
def test_a_preset_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    text = (files("anespec.manifests.presets") / "phi-4-mini.json").read_text()
    with pytest.raises(ValidationError):
        Preset.model_validate(json.loads(text) | change)
