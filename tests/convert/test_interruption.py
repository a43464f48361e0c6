"""An interrupted run leaves nothing at the final name, and the next one goes on where it stopped."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.convert import build as building
from anespec.convert import package
from anespec.convert.package import WeightFile
from anespec.convert.pipeline import ShardProgress
from anespec.convert.worker_pool import staggered
from anespec.manifests.schema import WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import StorageError
from anespec.system.formatting import bytes_text

SUPPORT = Path(__file__).resolve().parents[1] / "support"
TOPOLOGY = (1, 1)

KILLED_RUN = """
import os, signal, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from converting import build

def kill(progress):
    os.kill(os.getpid(), signal.SIGKILL)

build(Path(sys.argv[2]), Path(sys.argv[3]), topology=(1, 1), on_progress=kill)
"""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf", TinyModel())


@pytest.fixture(scope="module")
def uninterrupted(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return weights(build(gguf, tmp_path_factory.mktemp("whole") / "m.anespec", topology=TOPOLOGY).path)


def weights(artifact: Path) -> dict[str, bytes]:
    """The weights of every shard."""
    return {path.relative_to(artifact).as_posix(): path.read_bytes() for path in artifact.rglob("weight.bin")}


def interrupted(gguf: Path, output: Path, after: int, **options: object) -> None:
    """Start a run that is interrupted after its shard number `after`."""
    seen: list[str] = []

    def stop(progress: ShardProgress) -> None:
        seen.append(progress.name)
        if len(seen) == after:
            raise KeyboardInterrupt

    verb = "is" if after == 1 else "are"
    kept = (
        rf"^interrupted; {after} of \d shards {verb} kept \(([0-9.]+ kB) in (\S+\.m\.anespec\.partial)\); "
        "run the same command again to continue, or remove that folder$"
    )
    with pytest.raises(KeyboardInterrupt, match=kept) as interruption:
        build(gguf, output, on_progress=stop, **options)
    size, folder = re.findall(kept, str(interruption.value))[0]
    files = (file for file in Path(folder).rglob("*") if file.is_file())
    assert size == bytes_text(sum(file.stat().st_size for file in files)), "what removing it gives back"
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 3])
def test_finished_shards_are_reused(
    gguf: Path, tmp_path: Path, uninterrupted: dict[str, bytes], after: int
) -> None:
    output = tmp_path / "m.anespec"
    interrupted(gguf, output, after, topology=TOPOLOGY)
    kept = {path.stat().st_ino for path in tmp_path.rglob("weight.bin")}
    assert len(kept) == after

    progress: list[ShardProgress] = []
    done = build(gguf, output, topology=TOPOLOGY, on_progress=progress.append)
    assert [p.reused for p in progress] == [True] * after + [False] * (3 - after)
    assert done.reused_shards == after
    assert kept <= {path.stat().st_ino for path in output.rglob("weight.bin")}, "written again"
    assert progress[-1].done_bytes == progress[-1].total_bytes
    assert weights(output) == uninterrupted
    assert [path.name for path in tmp_path.iterdir()] == ["m.anespec"]
    assert all(path.suffix == ".mlpackage" for path in (output / "shards").iterdir())
    for shard in done.manifest.shards:
        Artifact(output).shard_path(shard)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["checkpoint", "weights"])
def test_a_damaged_shard_of_an_interrupted_run_is_built_again(
    gguf: Path, tmp_path: Path, uninterrupted: dict[str, bytes], damage: str
) -> None:
    output = tmp_path / "m.anespec"
    interrupted(gguf, output, 2, topology=TOPOLOGY)
    if damage == "checkpoint":
        next(tmp_path.rglob("layer_00.json")).write_text("{")
    else:
        file = next(path for path in tmp_path.rglob("weight.bin") if "layer_00" in str(path))
        file.write_bytes(bytes(file.stat().st_size))
    assert build(gguf, output, topology=TOPOLOGY).reused_shards == 1
    assert weights(output) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"weights": WeightChoice(WeightFormat.FP16)}, {"block": 8}, {"context": 128}, {"sequences": 2}],
)
def test_shards_of_other_options_are_not_reused(
    gguf: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    output = tmp_path / "m.anespec"
    interrupted(gguf, output, 2, topology=TOPOLOGY, **options)
    assert build(gguf, output, topology=TOPOLOGY).reused_shards == 0


@pytest.mark.slow
def test_shards_of_another_model_are_not_reused(gguf: Path, tmp_path: Path) -> None:
    other = write_gguf(tmp_path / "tiny.gguf", TinyModel(seed=1))
    output = tmp_path / "m.anespec"
    interrupted(other, output, 2, topology=TOPOLOGY)
    assert build(gguf, output, topology=TOPOLOGY).reused_shards == 0


@pytest.mark.slow
def test_shards_that_another_topology_shares_are_reused_and_others_removed(tmp_path: Path) -> None:
    three = write_gguf(tmp_path / "tiny.gguf", TinyModel(layers=3))
    output = tmp_path / "m.anespec"
    interrupted(three, output, 2, topology=(1, 1, 1))
    assert build(three, output, topology=(1, 2)).reused_shards == 1
    assert {path.stem for path in (output / "shards").iterdir()} == {
        "layer_00",
        "layers_01_02",
        "head_00",
    }


@pytest.mark.slow
def test_an_interruption_within_a_shard_leaves_no_part_of_it(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "m.anespec"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt, match=r"and nothing is kept$"):
        patched.setattr(WeightFile, "content", interrupt)
        build(gguf, output)
    assert not list(tmp_path.iterdir())
    assert build(gguf, output).reused_shards == 0
    assert [path.name for path in tmp_path.iterdir()] == ["m.anespec"]


@pytest.mark.parametrize("place", ["layer_shard", "head_shard", "_export"])
def test_an_interruption_that_coremltools_would_swallow_is_heard(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Building and exporting a graph run through its code, where a bare `except:` stands here and there."""
    module = package if place == "_export" else building
    original = getattr(module, place)

    def swallowing(*arguments: object) -> object:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(module, place, swallowing)
    with pytest.raises(KeyboardInterrupt, match="interrupted"):
        build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=1)


@pytest.mark.slow
def test_a_killed_run_can_be_repeated(gguf: Path, tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    output = tmp_path / "m.anespec"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_RUN, str(SUPPORT), str(gguf), str(output)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert not output.exists()
    assert {path.name for path in tmp_path.iterdir()} == {".m.anespec.partial", ".m.anespec.lock"}
    done = build(gguf, output, topology=TOPOLOGY)
    assert done.reused_shards == 1
    assert weights(output) == uninterrupted
    assert [path.name for path in tmp_path.iterdir()] == ["m.anespec"]


def test_what_workers_had_begun_is_removed_and_what_they_finished_is_kept(gguf: Path, tmp_path: Path) -> None:
    """Workers are ended within a shard, and cannot tidy up: what they leave looks like this."""
    output, work = tmp_path / "m.anespec", tmp_path / ".m.anespec.partial"

    def stop(progress: ShardProgress) -> None:
        begun = work / "shards" / ".layer_01.partial.mlpackage" / "Data"
        begun.mkdir(parents=True, exist_ok=True)
        (begun / "weight.bin").write_bytes(bytes(1000))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="1 of 3 shards is kept"):
        build(gguf, output, topology=TOPOLOGY, on_progress=stop)
    assert {path.name for path in (work / "shards").iterdir()} == {"layer_00.mlpackage", "layer_00.json"}


def test_with_several_workers_a_small_shard_is_finished_first() -> None:
    """Shards of one size, two at a time, would both be half done in the middle of a run."""
    sizes = dict(enumerate((10, 90, 20, 90, 15)))
    tasks: Any = list(sizes)

    def order(workers: int) -> list[int]:
        ordered = staggered(tasks, workers, lambda task: sizes[cast(int, task)])
        return [sizes[cast(int, task)] for task in ordered]

    assert order(2) == [90, 10, 90, 20, 15]
    assert order(3) == [90, 10, 15, 90, 20]
    assert order(1) == order(5) == order(9) == [90, 90, 20, 15, 10]


@pytest.mark.slow
def test_an_interruption_of_two_workers_keeps_what_was_finished(gguf: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.anespec"

    def stop(progress: ShardProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"[12] of 3 shards (is|are) kept") as interrupted:
        build(gguf, output, topology=TOPOLOGY, jobs=2, on_progress=stop)
    kept = int(str(interrupted.value).split()[1])
    assert not list(tmp_path.rglob("*.partial.mlpackage"))
    assert build(gguf, output, topology=TOPOLOGY).reused_shards == kept


def test_a_place_that_takes_no_files_is_no_other_conversion(gguf: Path) -> None:
    with pytest.raises(StorageError, match=r"^/proc/x: cannot be written \(.+\); choose another"):
        build(gguf, Path("/proc/x"))
