"""Shards built by several processes: the same bytes as by one, and no process outlives its run."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from converting import build
from patience import PATIENCE
from slow import slow_but
from tiny_model import TinyModel, write_gguf
from waiting import until

from anespec.convert import worker_process
from anespec.convert.pipeline import Conversion
from anespec.system.errors import AnespecError, GGUFError
from anespec.system.machine import peak_memory

SUPPORT = Path(__file__).resolve().parents[1] / "support"
LAYERS = 6
TOPOLOGY = (1,) * LAYERS

RUN_AND_STOP = """
import os, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from converting import build

def stop(progress):
    if sys.argv[4] == "None":
        return
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


@pytest.mark.slow
def test_workers_write_the_same_bytes(gguf: Path, tmp_path: Path) -> None:
    alone, alone_bytes = built(gguf, tmp_path / "alone.anespec", jobs=1)
    several, several_bytes = built(gguf, tmp_path / "several.anespec", jobs=2)
    assert len(several.manifest.layer_shards) == LAYERS
    assert files(several.path) == files(alone.path)
    assert several.manifest.shards == alone.manifest.shards
    assert several.peak_memory_bytes > peak_memory() + 10_000_000, "workers' memory counts too"
    weights = sum(tensor.bytes for shard in alone.manifest.shards for tensor in shard.tensors)
    for said in (alone_bytes, several_bytes):
        assert said == sorted(said)
        assert said[-1] == weights
        assert len(set(said)) > 2 * (LAYERS + 1), "progress moves within a shard"


def built(gguf: Path, output: Path, jobs: int) -> tuple[Conversion, list[int]]:
    """A conversion, and the bytes that it said were done."""
    said: list[int] = []
    done = build(gguf, output, topology=TOPOLOGY, jobs=jobs, on_bytes=said.append)
    return done, said


FAULTS = {
    "os.kill(os.getpid(), signal.SIGKILL)": (
        AnespecError,
        r"was killed, most likely for lack of memory; .*1$",
    ),
    "os.kill(os.getpid(), signal.SIGSEGV)": (AnespecError, r"was ended by SIGSEGV; run the command .*1$"),
    "os._exit(3)": (AnespecError, r"ended with exit code 3 before its work was done; run the .*1$"),
    "raise GGUFError('m.gguf: is bad')": (GGUFError, r"^m\.gguf: is bad$"),
    "raise MemoryError": (AnespecError, r"ran out of memory; run the command again with --jobs 1$"),
    "import absent": (AnespecError, r"could not import a module \(No module named 'absent'\); install"),
    "raise KeyError('a bug')": (
        RuntimeError,
        r"(?s)in a process of the conversion:\nTraceback.*KeyError: 'a bug'",
    ),
}

FAULTY = """
import os, signal, sys, types

def build_unit(*_):
    from anespec.system.errors import GGUFError
    {fault}

sys.modules["anespec.convert.worker_imports"] = types.ModuleType("worker_imports")
sys.modules["anespec.convert.build"] = build = types.ModuleType("build")
build.build_unit = build_unit
"""


@pytest.mark.fast_only("import absent", "os._exit(3)")
@pytest.mark.parametrize("fault", FAULTS)
def test_how_a_worker_fails_is_told_as_what_it_is(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    output = tmp_path / "place" / "m.anespec"
    output.parent.mkdir()
    (tmp_path / "sitecustomize.py").write_text(FAULTY.format(fault=fault))
    monkeypatch.syspath_prepend(tmp_path)
    kind, words = FAULTS[fault]
    with pytest.raises(kind, match=words):
        build(gguf, output, topology=TOPOLOGY, jobs=2)
    assert not list(output.parent.iterdir())


@pytest.mark.slow
def test_a_worker_that_cannot_import_says_so(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['coremltools'] = None")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AnespecError, match=r"could not import a module \(.*coremltools.*\); install"):
        build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=2)


def test_a_system_that_refuses_processes_is_told_as_that(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As small limits of files or processes do; nothing of that is about a file or standard output."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(AnespecError, match=r"cannot be started .*--jobs 1"):
        build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=2)
    assert not list(tmp_path.iterdir())


def test_a_process_that_does_not_even_start(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "WORKER", "anespec.absent")
    with pytest.raises(AnespecError, match=r"ended with exit code 1 before its work was done"):
        build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=2)


AS_ON_A_MAC = """
import multiprocessing
spawning = multiprocessing.get_context("spawn")
multiprocessing.get_context = lambda *_: spawning
"""

TRAPS = ("anespec", "coremltools", "encodings", "multiprocessing", "numpy", "pickle", "runpy")


@pytest.mark.slow
@pytest.mark.parametrize("fault", slow_but([None, "SIGKILL", "SIGINT"], "SIGKILL"))
def test_workers_that_are_not_forked(gguf: Path, tmp_path: Path, fault: str | None) -> None:
    """As on a Mac: the same bytes, nothing of the current folder, and no word of what they leave behind.

    They do not run the caller's main module, which here is a script without a guard.
    """
    alone, _ = built(gguf, tmp_path / "alone.anespec", jobs=1)
    trapped, output = tmp_path / "trapped", tmp_path / "place" / "m.anespec"
    (tmp_path / "added").mkdir()
    trapped.mkdir()
    output.parent.mkdir()
    (tmp_path / "added" / "sitecustomize.py").write_text(AS_ON_A_MAC)
    for name in TRAPS:
        (trapped / f"{name}.py").write_text(f"import os; os.write(2, b'{name} of the current folder')")
    script = tmp_path / "run.py"
    script.write_text(RUN_AND_STOP.replace('if __name__ == "__main__":', "if True:"))
    run = subprocess.run(
        [sys.executable, "-P", script, SUPPORT, gguf, output, str(fault)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "added")},
        cwd=trapped,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        start_new_session=True,
        timeout=PATIENCE,
    )
    said = [line for line in run.stderr.splitlines() if not line.startswith(("  ", "Traceback", "Keyboard"))]
    assert said == [], run.stderr
    assert run.returncode == (-signal.Signals[fault] if fault else 0)
    if fault is None:
        assert files(output) == files(alone.path)


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("sign", slow_but(["SIGKILL", "SIGINT"], "SIGINT"))
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
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == -(signal.SIGKILL if sign == "SIGKILL" else signal.SIGINT), said
    until(lambda: not is_alive(run.pid))
    assert not output.exists()
    work = output.with_name(".m.anespec.partial")
    assert any(work.glob("shards/*.mlpackage")), "the finished shard is kept"
    assert build(gguf, output, topology=TOPOLOGY).reused_shards >= 1
