"""`anespec tune` from a GGUF to a report that `convert --tuned` takes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_model import TinyModel, write_gguf
from trials import trial_here

from anespec.cli.main import cli
from anespec.convert.planning.plan import ConversionPlan
from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.schema import AttentionShape, KVForm, Shapes, Target
from anespec.validate.tuning import artifact_bench
from anespec.validate.tuning import run as tuning
from anespec.validate.tuning.candidates import Space
from anespec.validate.tuning.options import TuneOptions
from anespec.validate.tuning.truncated_gguf import write_first_layers

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

SPACE = Space(
    weights=("int8-channel",),
    kv_form=(KVForm.REREAD, KVForm.PACKED),
    attention=(AttentionShape.GROUPED,),
    shapes=(Shapes.STATIC,),
    layout=(ChannelLayout.ROWS_THIRD,),
    block=(4,),
    prefill_block=(64,),
    shard_bytes=(1_000_000,),
    head_shards=(1,),
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def two_candidates(plan: ConversionPlan, weights: object) -> Space:
        return SPACE

    monkeypatch.setattr(tuning, "default_space", two_candidates)
    monkeypatch.setattr(artifact_bench, "child_answer", trial_here)
    monkeypatch.chdir(tmp_path)
    return write_gguf(tmp_path / "tiny.gguf", TinyModel(vocabulary=96))


def tune(*arguments: object) -> tuple[int, str]:
    shared = ("--target", "cpu", "--backend", "torch", "--threads", "1", "--context", "64")
    done = CliRunner().invoke(cli, ["tune", *map(str, (*arguments, *shared))])
    return done.exit_code, done.stdout


@pytest.mark.slow
def test_from_a_model_to_an_artifact(model: Path) -> None:
    code, said = tune(model)
    assert code == 0, said
    assert "2 candidates measured; 0 of them unusable here" in said
    report = json.loads((model.parent / "tiny.tuned.json").read_text())
    best = report["whole"][0]
    assert (best["which"], best["measured"] > 0) == ("best", True)
    assert report["preset"]["provenance"]["grade"] == "ours"
    assert "The best, measured whole: " in said
    assert ("convert without --tuned" in said) or ("Next: anespec convert" in said)
    assert {trial["candidate"]["kv_form"] for trial in report["trials"]} == {"reread", "packed"}
    converted = CliRunner().invoke(
        cli, ["convert", str(model), "--tuned", "tiny.tuned.json", "-o", "tuned.anespec", "--context", "64"]
    )
    assert converted.exit_code == 0, converted.output
    manifest = json.loads((model.parent / "tuned.anespec" / "manifest.json").read_text())
    assert manifest["kv_form"] == report["choices"]["kv_form"]
    assert manifest["shapes"] == "static"
    assert [path.name for path in (model.parent / ".tiny.tuned.json.work").iterdir()] == ["trials.jsonl"]
    # A second run measures nothing again.
    code, said = tune(model)
    assert (code, "2 of them kept from an earlier run" in said) == (0, True)


def test_what_is_no_model_is_one_sentence(tmp_path: Path, model: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    done = CliRunner().invoke(cli, ["tune", "broken.gguf", "--target", "cpu"])
    assert done.exit_code != 0
    assert not list(tmp_path.glob("*.tuned.json"))


def test_layers_that_a_search_over_another_model_left_are_not_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_gguf(tmp_path / "other.gguf", TinyModel(layers=2, vocabulary=96, context=64, seed=5))
    work = tmp_path / "work"
    work.mkdir()
    write_first_layers(other, 1, work / "first-1.gguf")
    (work / f"trial-{'0' * 16}.anespec" / "shards").mkdir(parents=True)
    (work / "first-draft.gguf").touch()
    (work / "trial-results").mkdir()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "search", stop)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(model, work, TuneOptions(target=Target.CPU, backend="torch"))
    # What is a person's own stays.
    names = sorted(path.name for path in work.iterdir())
    assert names == ["first-draft.gguf", "trial-results", "trials.jsonl"]
