"""`--tuned`: measured choices fill in what nobody gave, and nothing else."""

import json
import random
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tiny_model import TinyModel, write_gguf

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan, with_tuned
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.presets import MatchedModel, find_preset
from anespec.manifests.schema import AttentionShape, Shapes, Target, WeightFormat
from anespec.manifests.tuned import LARGEST_REPORT, ChoiceReason, TunedChoices, read_choices
from anespec.system.errors import RequestError, StorageError

PHI = find_preset("phi-4-mini").model


def choices(**changes: Any) -> TunedChoices:
    fields: dict[str, Any] = {
        "source": "selftest",
        "machine": "Apple M4 Max, macOS 26.1",
        "measured_at": datetime(2026, 11, 1, tzinfo=UTC),
        "target": Target.MAC,
        "weights": "lut6,head=int8-channel",
        "attention": AttentionShape.GROUPED,
        "block": 8,
        "provenance": (ChoiceReason(choice="block", because="8 rows cost what 4 do", measured=True),),
    }
    return TunedChoices(**fields | changes)


def written(path: Path, found: TunedChoices) -> Path:
    path.write_text(found.model_dump_json())
    return path


def test_a_report_its_archive_and_bare_choices_are_read_alike(tmp_path: Path) -> None:
    found = choices()
    bare = written(tmp_path / "bare.json", found)
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"steps": [], "choices": found.model_dump(mode="json")}))
    archive = tmp_path / "report.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.write(report, "report.json")
    assert read_choices(bare) == read_choices(report) == read_choices(archive) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a report"),
        ("[1]", "has no choices"),
        ('{"choices": null}', "recommends nothing"),
        ('{"choices": {"source": "selftest"}}', "has no choices"),
    ],
)
def test_what_holds_no_choices_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=sentence):
        read_choices(path)


def test_archives_that_hold_something_else_or_too_much_are_refused(tmp_path: Path) -> None:
    for name, content in (("other.txt", b"x"), ("report.json", b" " * (LARGEST_REPORT + 1))):
        path = tmp_path / f"{name}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
            opened.writestr(name, content)
        with pytest.raises(RequestError, match="is not a report"):
            read_choices(path)
    with pytest.raises(StorageError, match="cannot be read"):
        read_choices(tmp_path / "absent.json")


def test_choices_that_no_conversion_takes_are_refused() -> None:
    for change in ({"weights": "int7"}, {"block": 0}, {"topology": ()}, {"kv_form": "none"}):
        with pytest.raises(ValueError):
            choices(**change)


def test_what_is_given_holds_and_the_rest_is_taken_over(tmp_path: Path) -> None:
    report = written(tmp_path / "r.json", choices(shard_bytes=500_000_000))
    given = ConvertOptions(tuned=report, block=2)
    tuned = with_tuned(given, PHI)
    assert tuned.options.tuned is None
    assert (tuned.options.target, tuned.options.block) == (Target.MAC, 2)
    assert str(tuned.options.weights) == "lut6,head=int8-channel"
    assert (tuned.options.attention, tuned.options.shard_bytes) == (AttentionShape.GROUPED, 500_000_000)
    taken, overruled = tuned.notes
    assert "r.json, measured on Apple M4 Max, macOS 26.1" in taken
    assert "--weights lut6,head=int8-channel" in taken
    assert "--block 8, but the command line overrides it" in overruled


def test_without_a_report_nothing_changes() -> None:
    options = ConvertOptions(block=2)
    assert with_tuned(options, PHI).options is options


def test_a_topology_is_for_one_model(tmp_path: Path) -> None:
    report = written(tmp_path / "r.json", choices(model=PHI, topology=(16, 16), head_shards=13))
    assert with_tuned(ConvertOptions(tuned=report), PHI).options.topology == (16, 16)
    other = PHI.model_copy(update={"layers": 16})
    tuned = with_tuned(ConvertOptions(tuned=report), other)
    assert (tuned.options.topology, tuned.options.head_shards) == (None, None)
    assert any("--topology 16,16, --head-shards 13 is for another model" in note for note in tuned.notes)


def test_a_prefill_block_is_taken_where_there_is_one(tmp_path: Path) -> None:
    report = written(tmp_path / "r.json", choices(shapes=Shapes.FUNCTIONS, prefill_block=64))
    assert with_tuned(ConvertOptions(tuned=report), PHI).options.prefill_block == 64
    for given in ({"shapes": Shapes.STATIC}, {"block": 64}):
        assert with_tuned(ConvertOptions(tuned=report, **given), PHI).options.prefill_block is None


def test_another_target_is_refused(tmp_path: Path) -> None:
    report = written(tmp_path / "r.json", choices())
    with pytest.raises(RequestError, match="was measured for --target mac, not cpu"):
        with_tuned(ConvertOptions(tuned=report, target=Target.CPU), PHI)
    assert with_tuned(ConvertOptions(tuned=report, target=Target.MAC), PHI).options.block == 8


def test_a_plan_follows_the_choices(tmp_path: Path) -> None:
    model = TinyModel()
    gguf = write_gguf(tmp_path / "m.gguf", model)
    with GGUFFile(gguf) as file:
        source = SourceModel(file)
        sizes = MatchedModel.of("llama", source.sizes)
        own = choices(model=sizes, topology=(1, 1), target=Target.CPU, weights="fp16", block=2)
        report = written(tmp_path / "r.json", own)
        plan = ConversionPlan(source, ConvertOptions(tuned=report))
        assert plan.topology.layers == (1, 1)
        assert (plan.options.target, plan.options.block) == (Target.CPU, 2)
        assert plan.options.weights.default is WeightFormat.FP16
        assert plan.tuning_notes
        small = ConversionPlan(source, ConvertOptions(shard_bytes=1))
        assert small.topology.layers == (1, 1)
        assert "as --shard-bytes says" in small.sharding.reasons[0]
        assert ConversionPlan(source, ConvertOptions()).topology.layers == (2,)


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_a_damaged_archive_is_one_sentence_or_read_well(tmp_path: Path, method: int) -> None:
    found, path = choices(), tmp_path / "report.zip"
    with zipfile.ZipFile(path, "w", method) as opened:
        opened.writestr("report.json", found.model_dump_json())
    whole, rolls = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rolls.randrange(len(whole))] = rolls.randrange(256)
        path.write_bytes(damaged)
        try:
            assert read_choices(path) == found
        except RequestError as error:
            refused += 1
            assert "None" not in str(error)
    assert refused


def test_a_machines_name_of_any_length_is_a_short_note(tmp_path: Path) -> None:
    path = written(tmp_path / "tuned.json", choices(machine="evil\x1b[2J" + "x" * 100_000))
    (note,) = with_tuned(ConvertOptions(tuned=path), PHI).notes
    assert len(note) < 300
    assert "\x1b" not in note
