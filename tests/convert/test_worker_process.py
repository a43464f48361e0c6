"""A process started before the plan is made: it builds the same bytes, and ends with the run."""

import os
import subprocess
from pathlib import Path

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.convert import worker_process
from anespec.convert.options import ConvertOptions
from anespec.convert.worker_process import WorkerProcess, early_process
from anespec.models.conversion import open_plan
from anespec.system.errors import AnespecError, GGUFError, RequestError

TOPOLOGY = (1, 1)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("source") / "tiny.gguf", TinyModel(layers=2))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes started: any file is worth one, on a machine with two processors."""
    monkeypatch.setattr(worker_process, "EARLY_START_BYTES", 0)
    monkeypatch.setattr(worker_process, "processors", lambda: 2)
    pids: list[int] = []

    class Heard(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            pids.append(self.pid)

    monkeypatch.setattr(worker_process.subprocess, "Popen", Heard)
    return pids


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 3])
def test_it_becomes_the_workers_that_are_wanted(
    gguf: Path, tmp_path: Path, started: list[int], jobs: int
) -> None:
    """It is the one that is wanted, or starts them."""
    alone = build(gguf, tmp_path / "alone.anespec", topology=TOPOLOGY, jobs=1)
    assert not started
    with early_process(gguf, None) as early:
        assert early is not None
        done = build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=jobs, early=early)
    assert done.manifest.shards == alone.manifest.shards
    assert len(started) == 1
    assert not any(is_alive(pid) for pid in started)


@pytest.mark.parametrize(
    ("content", "options", "refusal"),
    [(b"no GGUF", ConvertOptions(), GGUFError), (None, ConvertOptions(topology=(5,)), RequestError)],
)
def test_it_ends_where_the_plan_is_refused(
    gguf: Path,
    tmp_path: Path,
    started: list[int],
    content: bytes | None,
    options: ConvertOptions,
    refusal: type[AnespecError],
) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(gguf.read_bytes() if content is None else content)
    with pytest.raises(refusal), early_process(source, None), open_plan(source, options):
        raise AssertionError("planned")
    assert len(started) == 1
    assert not is_alive(started[0])


def test_it_ends_with_an_interruption_and_with_what_is_up_to_date(
    gguf: Path, tmp_path: Path, started: list[int]
) -> None:
    with pytest.raises(KeyboardInterrupt), early_process(gguf, None):
        raise KeyboardInterrupt
    assert not is_alive(started[0])
    build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=1)
    with early_process(gguf, None) as early:
        assert build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, early=early).up_to_date
        assert not is_alive(started[1])


def test_one_that_ended_before_its_job_is_told_by_the_run(gguf: Path, tmp_path: Path) -> None:
    early = WorkerProcess()
    early.end()
    with pytest.raises(AnespecError, match=r"was killed, most likely for lack of memory"):
        build(gguf, tmp_path / "m.anespec", topology=TOPOLOGY, jobs=1, early=early)


def test_none_is_started_where_the_run_needs_none(
    gguf: Path, tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_early(source: Path, jobs: int | None) -> bool:
        with early_process(source, jobs) as early:
            return early is not None

    assert is_early(gguf, 2)
    assert not is_early(gguf, 1)
    assert not is_early(tmp_path / "absent.gguf", None)
    monkeypatch.setattr(worker_process, "EARLY_START_BYTES", gguf.stat().st_size + 1)
    assert not is_early(gguf, None)
    assert len(started) == 1
