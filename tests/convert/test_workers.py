"""Shards built by several processes: the same bytes as by one, and no process outlives its run."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.convert.pipeline import ShardProgress
from anespec.manifests.errors import AnespecError

SUPPORT = Path(__file__).resolve().parents[1] / "support"
LAYERS = 6
TOPOLOGY = (1,) * LAYERS

RUN_AND_STOP = """
import os, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from converting import build

def stop(progress):
    os.killpg(0, signal.SIGINT) if sys.argv[4] == "SIGINT" else os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

if __name__ == "__main__":
    build(Path(sys.argv[2]), Path(sys.argv[3]), topology=(1,) * 6, jobs=2, on_progress=stop)
"""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf", TinyModel(layers=LAYERS))


def files(artifact: Path) -> dict[str, bytes]:
    """Every file of every shard."""
    folder = artifact / "shards"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.*")
        if path.is_file()
    }


def test_workers_write_the_same_bytes(gguf: Path, tmp_path: Path) -> None:
    alone = build(gguf, tmp_path / "alone.anespec", topology=TOPOLOGY, jobs=1)
    several = build(gguf, tmp_path / "several.anespec", topology=TOPOLOGY, jobs=2)
    assert len(several.manifest.layer_shards) == LAYERS
    assert files(several.path) == files(alone.path)
    assert several.manifest.shards == alone.manifest.shards


def test_a_worker_that_is_killed_is_explained(gguf: Path, tmp_path: Path) -> None:
    def kill(_: ShardProgress) -> None:
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGKILL)

    with pytest.raises(AnespecError, match=r"was killed, most likely for want of memory; .* --jobs 1$"):
        build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=2, on_progress=kill)
    assert not list(tmp_path.iterdir())


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("sign", ["SIGKILL", "SIGINT"])
def test_a_run_that_ends_early_leaves_no_process_behind(gguf: Path, tmp_path: Path, sign: str) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN_AND_STOP)
    output = tmp_path / "place" / "m.anespec"
    output.parent.mkdir()
    run = subprocess.Popen(
        [sys.executable, str(script), str(SUPPORT), str(gguf), str(output), sign],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _, said = run.communicate(timeout=60)
    assert run.returncode == -(signal.SIGKILL if sign == "SIGKILL" else signal.SIGINT), said
    deadline = time.monotonic() + 10
    while is_alive(run.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(run.pid)
    assert not output.exists()
    work = output.with_name(".m.anespec.partial")
    assert any(work.glob("shards/*.mlpackage")), "the finished shard is kept"
    assert build(gguf, output, topology=TOPOLOGY).reused_shards >= 1
