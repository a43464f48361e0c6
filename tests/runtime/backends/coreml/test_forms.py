"""Every form of K/V gives torch's own bits through coremltools' own classes."""

from pathlib import Path

import pytest
from by_hand import run_tokens, same_bits, states
from converting import build
from family_files import FAMILIES
from light_core_ml import meet_here
from slow import slow_but
from standin_core_ml import stand_in
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import KVForm, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.coreml.backend import CoreMLBackend
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLTools
from anespec.runtime.backends.pass_inputs import first_places, first_slots

TOKENS = [1, 5, 9, 5, 1, 7, 3, 3, 8, 2]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CoreMLBackend:
    """Core ML stood in for; load probes are made in this process, which spares the starts of others."""
    stand_in(monkeypatch)
    meet_here(monkeypatch, CoreMLTools())
    return CoreMLBackend("coreml", ComputeUnits.CPU_AND_NE)


@pytest.mark.parametrize("form", slow_but(KVForm, KVForm.AT_POSITION))
def test_every_form_gives_torchs_own_bits(tmp_path: Path, backend: CoreMLBackend, form: KVForm) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel(layers=2))
    path = build(
        source, tmp_path / "m.anespec", target=Target.MAC, context=64, topology=(1, 1), kv_form=form
    ).path
    found, expected = backend.open(Artifact(path), 1), open_verifier(path, "torch", threads=1)
    assert same_bits(run_tokens(found, TOKENS), run_tokens(expected, TOKENS))
    assert all((a == b).all() for a, b in zip(states(found), states(expected), strict=True))
    found.copy_slots(0, 0, 16, 4)
    expected.copy_slots(0, 0, 16, 4)
    assert all((a == b).all() for a, b in zip(states(found), states(expected), strict=True))
    found.close()
    expected.close()


@pytest.mark.slow
@pytest.mark.parametrize("form", [None, KVForm.OUTSIDE, KVForm.AT_POSITION])
def test_chunks_are_folded_between_passes(
    tmp_path: Path, backend: CoreMLBackend, form: KVForm | None
) -> None:
    """Of recurrent layers: whole states are copied to read a chunk's rows and to write what is carried."""
    path = build(
        FAMILIES / "granitehybrid.gguf",
        tmp_path / "m.anespec",
        target=Target.MAC,
        context=128,
        sequences=2,
        kv_form=form,
    ).path
    found, expected = backend.open(Artifact(path), 1), open_verifier(path, "torch", threads=1)
    tokens = [(7 * i) % 500 + 3 for i in range(70)]
    assert same_bits(run_tokens(found, tokens), run_tokens(expected, tokens))
    for each in (found, expected):
        each.copy_carried(0, 1)
    assert all((a == b).all() for a, b in zip(states(found), states(expected), strict=True))
    for region in (0, 1):
        for mine, its in zip(found.export_carried(region), expected.export_carried(region), strict=True):
            assert mine.any() and same_bits(mine, its)
    found.close()
    expected.close()


def test_a_load_probe_places_rows_where_they_write() -> None:
    """Without a row in two places, or the decays between them would not be numbers."""
    places = first_places((1, 2, 40, 16))
    rows, slots = 40, 32
    assert (places.sum(axis=(0, 1, 3)) == [1] * slots + [0] * (rows - slots)).all()
    written = first_slots((1, 1, slots, rows))
    assert (places[0].transpose(0, 2, 1).reshape(slots, rows) == written[0, 0]).all()
