"""The run: what an artifact holds, and what stands at its place before, during and after."""

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import build
from gguf.constants import GGMLQuantizationType
from tiny_model import TinyModel, write_gguf

from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import ShardProgress
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.convert.source.tokens import write_tokens
from anespec.convert.worker_process import WorkerProcess
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import AttentionShape, Target, WeightFormat
from anespec.manifests.store import Artifact, file_sha256
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import GGUFError, RequestError, StorageError, UsageError

TINY = TinyModel(layers=3)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf", TINY)


@pytest.fixture(scope="module")
def whole(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(gguf, tmp_path_factory.mktemp("whole") / "m.anespec").path


@pytest.fixture
def output(whole: Path, tmp_path: Path) -> Path:
    """The model converted with the options' defaults; the test may do with it as it likes."""
    return Path(shutil.copytree(whole, tmp_path / "m.anespec"))


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and what it holds."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_layout_and_manifest(gguf: Path, tmp_path: Path) -> None:
    progress: list[ShardProgress] = []
    done = build(
        gguf, tmp_path / "m.anespec", topology=(2, 1), head_shards=2, sequences=2, on_progress=progress.append
    )
    assert [path.name for path in tmp_path.iterdir()] == ["m.anespec"]
    assert {path.relative_to(done.path).as_posix() for path in done.path.glob("*")} == {
        "manifest.json",
        "tokens.gguf",
        "shards",
    }
    names = ["layers_00_01", "layer_02", "head_00", "head_01"]
    assert {path.name for path in (done.path / "shards").iterdir()} == {f"{name}.mlpackage" for name in names}
    assert [(p.name, p.reused) for p in progress] == [(name, False) for name in names]
    assert [p.done_bytes for p in progress] == sorted({p.done_bytes for p in progress})
    assert progress[-1].done_bytes == progress[-1].total_bytes

    artifact = Artifact(done.path)
    manifest = artifact.manifest
    assert manifest == done.manifest
    assert (done.reused_shards, done.up_to_date) == (0, False)
    assert manifest.topology == (2, 1)
    assert [(s.first_token, s.end_token) for s in manifest.head_shards] == [(0, 20), (20, 40)]
    assert manifest.source.sha256 == file_sha256(gguf)
    assert (manifest.source.name, manifest.source.bytes) == ("tiny.gguf", gguf.stat().st_size)
    assert (manifest.source.architecture, manifest.source.quantisation) == ("llama", "F32")
    assert (manifest.target, manifest.attention) == (Target.MAC, AttentionShape.PER_KV_HEAD)
    assert [pool.slots for pool in manifest.pools] == [128]
    assert [s.name for s in manifest.layer_shards[1].states] == ["k_2", "v_2"]
    assert all(s.formats == (WeightFormat.INT8_CHANNEL,) for s in manifest.layer_shards)
    for shard in manifest.shards:
        assert artifact.shard_path(shard).is_dir()
    assert file_sha256(artifact.tokens_path()) == manifest.tokens.sha256


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0]
)
def test_tokens_keep_their_quantisation_rows_and_vocabulary(
    tmp_path: Path, kind: GGMLQuantizationType
) -> None:
    metadata = {
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.ggml.token_type": [1] * TINY.vocabulary,
        "general.name": "Tiny",
        "llama.rope.freq_base": 10000.0,
    }
    source = write_gguf(tmp_path / "tiny.gguf", TINY, metadata=metadata, kind=kind)
    artifact = Artifact(build(source, tmp_path / "m.anespec").path)
    with GGUFFile(source) as original, GGUFFile(artifact.tokens_path()) as tokens:
        assert list(tokens.tensors) == [artifact.manifest.tokens.embedding_tensor]
        assert tokens.info("token_embd.weight").kind is kind
        assert (tokens.raw("token_embd.weight") == original.raw("token_embd.weight")).all()
        for key, value in original.metadata.items():
            if key.startswith("tokenizer.") or key == "general.name":
                np.testing.assert_array_equal(tokens.metadata[key], value)
        assert not [key for key in tokens.metadata if key.startswith("llama.")]


def test_a_model_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.tokens": None})
    with pytest.raises(GGUFError, match="has no vocabulary"):
        build(source, tmp_path / "m.anespec")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


@pytest.mark.parametrize(
    "value",
    [1e300, -1, 2**40, np.full(3, 2**63, "<u8"), np.full(2, 1e300), np.zeros(2, "<f4"), np.ones(2, bool)],
)
def test_keys_of_the_tokenizer_are_copied_whatever_their_type(gguf: Path, tmp_path: Path, value: Any) -> None:
    with GGUFFile(gguf) as source:
        source.metadata["tokenizer.other"] = value
        write_tokens(source, tmp_path / "tokens.gguf")
    with GGUFFile(tmp_path / "tokens.gguf") as tokens:
        copied = tokens.metadata["tokenizer.other"]
        assert getattr(copied, "dtype", None) == getattr(value, "dtype", None)
        np.testing.assert_array_equal(copied, value)


def test_a_failed_run_leaves_nothing(tmp_path: Path) -> None:
    values = TINY.tensors()["blk.2.ffn_up.weight"]
    values[0, 0] = np.nan
    source = write_gguf(tmp_path / "tiny.gguf", TINY, tensors={"blk.2.ffn_up.weight": values})
    with pytest.raises(GGUFError, match=r"'blk\.2\.ffn_up\.weight' holds values that are not finite"):
        build(source, tmp_path / "m.anespec", topology=(1, 1, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_the_same_run_again_is_up_to_date(gguf: Path, output: Path) -> None:
    before = everything(output)
    again = build(gguf, output, on_progress=lambda _: pytest.fail("worked again"))
    assert again.up_to_date
    assert again.manifest == Artifact(output).manifest
    assert everything(output) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"weights": WeightChoice(WeightFormat.FP16)},
        {"block": 8},
        {"target": Target.CPU},
        pytest.param({"attention": AttentionShape.GROUPED}, marks=pytest.mark.slow),
        pytest.param({"sequences": 2}, marks=pytest.mark.slow),
        pytest.param({"context": 128}, marks=pytest.mark.slow),
        pytest.param({"topology": (1, 2)}, marks=pytest.mark.slow),
        pytest.param({"head_shards": 2}, marks=pytest.mark.slow),
    ],
)
def test_other_options_are_refused_and_replace_when_forced(
    gguf: Path, output: Path, options: dict[str, Any]
) -> None:
    before = everything(output)
    with pytest.raises(UsageError, match=r"m\.anespec: is another artifact .* --force"):
        build(gguf, output, **options)
    assert everything(output) == before

    replaced = build(gguf, output, replace=True, **options)
    assert not replaced.up_to_date
    assert Artifact(output).manifest == replaced.manifest
    assert build(gguf, output, **options).up_to_date
    assert [path.name for path in output.parent.iterdir()] == ["m.anespec"]


def test_another_model_is_refused(output: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", TinyModel(layers=3, seed=1))
    with pytest.raises(UsageError, match="is another artifact than the one that would be built"):
        build(other, output)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove a shard", "remove the tokens"])
def test_a_damaged_artifact_is_built_again(gguf: Path, output: Path, tmp_path: Path, damage: str) -> None:
    """Every error about a damaged artifact says "convert the model again", so that must help."""
    before = everything(output)
    package = output / "shards" / "layers_00_02.mlpackage"
    weights = package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
    match damage:
        case "flip":
            data = bytearray(weights.read_bytes())
            data[len(data) // 2] ^= 1
            weights.write_bytes(data)
        case "truncate":
            os.truncate(weights, 1000)
        case "remove a shard":
            package.rename(tmp_path / "elsewhere")
        case "remove the tokens":
            (output / "tokens.gguf").unlink()
    assert not build(gguf, output).up_to_date
    assert set(everything(output)) == set(before)
    assert (weights.read_bytes()) == before[weights.relative_to(output).as_posix()]
    assert build(gguf, output).up_to_date


def test_a_failed_replacement_keeps_the_old_artifact(
    gguf: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(output)
    rename = os.rename

    def refuse(old: str, new: str, **folders: int) -> None:
        if old == ".m.anespec.partial":
            raise PermissionError(13, "Permission denied")
        rename(old, new, **folders)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        build(gguf, output, replace=True, block=8)
    assert everything(output) == before
    assert [path.name for path in output.parent.iterdir()] == ["m.anespec"]


@pytest.mark.parametrize("replace", [False, True])
def test_what_is_no_artifact_is_never_replaced(gguf: Path, tmp_path: Path, replace: bool) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    (tmp_path / "extension").mkdir()
    (tmp_path / "extension" / "manifest.json").write_text("{}")
    before = everything(tmp_path)
    for name in ("file", "folder", "extension"):
        with pytest.raises(UsageError, match=f"{name}: is not an artifact, so --force does not"):
            build(gguf, tmp_path / name, replace=replace)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("target", ["real", "missing", "link"])
def test_a_link_is_refused(gguf: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(StorageError, match=f"link: is a link to {target}; remove it, or give another path"):
        build(gguf, tmp_path / "link", replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    assert not any((tmp_path / "real").iterdir())


@pytest.mark.slow
def test_an_empty_folder_is_replaced_when_forced(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "m.anespec").mkdir()
    assert Artifact(build(gguf, tmp_path / "m.anespec", replace=True).path).manifest.topology == (3,)


def test_a_place_below_a_file_is_refused(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match=r"m\.anespec: cannot be written"):
        build(gguf, tmp_path / "file" / "m.anespec")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_that_cannot_be_written_is_refused(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"m\.anespec: cannot be written \(Permission denied\)"):
        build(gguf, tmp_path / "m.anespec")
    assert not list(tmp_path.iterdir())


def test_options_that_do_not_fit_touch_nothing(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        build(gguf, tmp_path / "m.anespec", topology=(9,))
    assert not list(tmp_path.iterdir())


def test_a_second_run_at_the_same_time_is_refused(gguf: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.anespec"
    refused: list[str] = []

    def start_another(_: ShardProgress) -> None:
        with pytest.raises(StorageError, match="another conversion to the same path is running") as caught:
            build(gguf, output)
        refused.append(str(caught.value))

    done = build(gguf, output, topology=(1, 2), on_progress=start_another)
    assert len(refused) == 3
    assert Artifact(done.path).manifest.topology == (1, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["m.anespec"]


@pytest.mark.fast_only("folder")
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_put_at_the_place_during_the_run_stays(gguf: Path, tmp_path: Path, kind: str) -> None:
    """Nothing stood there when the run began, so nobody was asked whether it may go."""
    output = tmp_path / "m.anespec"
    mine = output / "mine.txt" if kind == "folder" else output

    def put(_: ShardProgress) -> None:
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")

    with pytest.raises(UsageError, match="was created or replaced during the conversion"):
        build(gguf, output, topology=(1, 2), on_progress=put)
    assert mine.read_text() == "mine"
    output.rename(tmp_path / "elsewhere")
    assert build(gguf, output, topology=(1, 2)).reused_shards == 3


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_only_what_stood_there_is_replaced_by_force(
    gguf: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """`late`: it comes after the last look, while names are given."""
    rename = os.rename

    def put() -> None:
        rename(output, tmp_path / "old")
        output.mkdir()
        (output / "mine.txt").write_text("mine")

    def put_late(old: str, new: str, **folders: int) -> None:
        if old == output.name and new.startswith("."):
            put()
        rename(old, new, **folders)

    if late:
        monkeypatch.setattr(os, "rename", put_late)
    told = (lambda _: None) if late else (lambda _: None if (tmp_path / "old").exists() else put())
    with pytest.raises(UsageError, match="was created or replaced during the conversion"):
        build(gguf, output, replace=True, block=8, on_progress=told)
    assert [path.name for path in output.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_an_old_artifact_survives_a_kill_before_the_last_step(gguf: Path, output: Path) -> None:
    """Killed when the old one was put aside and the new one had no name yet; and the next run fails."""
    aside = output.with_name(".m.anespec.replaced")
    output.rename(aside)
    before = everything(aside)

    def fail(_: ShardProgress) -> None:
        raise StorageError("no space")

    with pytest.raises(StorageError, match="no space"):
        build(gguf, output, block=8, on_progress=fail)
    assert everything(aside) == before
    build(gguf, output, block=8)
    assert [path.name for path in output.parent.iterdir()] == ["m.anespec"]


def test_a_lock_on_a_file_that_was_removed_is_no_lock(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may remove the lock file between our opening and our locking of it."""
    flock = fcntl.flock

    def late(file: int, operation: int) -> None:
        (tmp_path / ".m.anespec.lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(StorageError, match="another conversion"):
        build(gguf, tmp_path / "m.anespec")


@pytest.mark.parametrize(("jobs", "started"), [(1000, 3), (2, 2), (1, 1)])
def test_no_more_processes_than_there_are_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, started: int
) -> None:
    import anespec.convert.pipeline as pipeline

    class Stopped(Exception):  # noqa: N818
        pass

    asked: list[int] = []

    def pool(plan: ConversionPlan, workers: int, early: WorkerProcess | None) -> None:
        asked.append(workers)
        raise Stopped

    monkeypatch.setattr(pipeline, "ConversionWorkers", pool)
    with GGUFFile(write_gguf(tmp_path / "m.gguf", TinyModel(layers=2))) as file:
        plan = ConversionPlan(SourceModel(file), ConvertOptions(topology=(1, 1)))
        with pytest.raises(Stopped):
            pipeline.convert(plan, tmp_path / "m.anespec", jobs=jobs)
    assert asked == [started]


def test_a_shard_that_is_taken_away_during_the_run_is_missed(tmp_path: Path) -> None:
    work = tmp_path / ".m.anespec.partial"

    def take_away(progress: ShardProgress) -> None:
        if progress.name == "layer_00":
            shutil.rmtree(work)

    gguf = write_gguf(tmp_path / "m.gguf", TinyModel(layers=2))
    with pytest.raises(StorageError, match=r"layer_0\d\.mlpackage: was removed"):
        build(gguf, tmp_path / "m.anespec", topology=(1, 1), on_progress=take_away)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
