"""What was measured is on disk before it is used, and is measured once."""

import contextlib
import os
import resource
from pathlib import Path

import pytest
from simulated import SPACE, SimulatedEngine

from anespec.system.errors import StorageError
from anespec.validate.tuning.run import Heading, Journal
from anespec.validate.tuning.search import search
from anespec.validate.tuning.workbench import Workload

HEADING = Heading(
    model_sha256="0" * 64,
    machine="simulated",
    backend="none",
    version="1",
    context=2048,
    target="mac",
    heed_rules=True,
)
WORKLOAD = Workload()


class StoppedError(Exception):
    """What ends a run in the middle."""


class Stopping(SimulatedEngine):
    """Measures so many probes and then no more."""

    def measure(self, probe):  # type: ignore[no-untyped-def]
        if len(self.asked) == 20:
            raise StoppedError
        return super().measure(probe)


def test_an_interrupted_search_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    with pytest.raises(StoppedError):
        search(SPACE, Journal(path, HEADING, Stopping()), WORKLOAD)
    # The process ended while a line was written.
    path.write_text(path.read_text() + '{"probe": {"candi')
    rest = SimulatedEngine()
    journal = Journal(path, HEADING, rest)
    assert journal.kept == 20
    whole = search(SPACE, SimulatedEngine(), WORKLOAD)
    found = search(SPACE, journal, WORKLOAD)
    assert found == whole
    assert len(rest.asked) == len(found.trials) - 20
    again = SimulatedEngine()
    assert search(SPACE, Journal(path, HEADING, again), WORKLOAD) == whole
    assert not again.asked


@pytest.mark.slow
def test_a_journal_about_something_else_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    search(SPACE, Journal(path, HEADING, SimulatedEngine()), WORKLOAD)
    for other in ({"machine": "another"}, {"model_sha256": "1" * 64}, {"heed_rules": False}):
        assert Journal(path, HEADING.model_copy(update=other), SimulatedEngine()).kept == 0
        search(SPACE, Journal(path, HEADING, SimulatedEngine()), WORKLOAD)


@pytest.mark.parametrize("content", ["", "\n", "no JSON", "[]", '{"machine": 1}', "\x00\xff"])
def test_a_file_that_is_no_journal_keeps_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text(content)
    assert Journal(path, HEADING, SimulatedEngine()).kept == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="--work"):
        Journal(tmp_path / "trials.jsonl", HEADING, SimulatedEngine())


def test_a_folder_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").mkdir()
    with pytest.raises(StorageError, match="--work"):
        Journal(tmp_path / "trials.jsonl", HEADING, SimulatedEngine())


def test_a_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trials.jsonl")
    with pytest.raises(StorageError, match="is a pipe or a device"):
        Journal(tmp_path / "trials.jsonl", HEADING, SimulatedEngine())


@pytest.mark.parametrize("name", ["trials.jsonl", ".trials.jsonl.partial"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    with contextlib.suppress(StorageError):
        search(SPACE, Journal(tmp_path / "trials.jsonl", HEADING, SimulatedEngine()), WORKLOAD)
    assert precious.read_text() == "mine"


def test_a_full_disk_leaves_a_whole_journal(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    with pytest.raises(StoppedError):
        search(SPACE, Journal(path, HEADING, Stopping()), WORKLOAD)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
    try:
        with pytest.raises(StorageError, match="File too large; make room"):
            search(SPACE, Journal(path, HEADING, SimulatedEngine()), WORKLOAD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["trials.jsonl"]


def test_other_threads_are_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    with pytest.raises(StoppedError):
        search(SPACE, Journal(path, HEADING, Stopping()), WORKLOAD)
    assert Journal(path, HEADING.model_copy(update={"threads": 1}), SimulatedEngine()).kept == 0
