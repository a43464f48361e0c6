"""What a full disk, or a folder that goes, keeps from being written is written later."""

import errno
import io
import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from toy_memory import OWNER, learnt, opened, text

import anespec.runtime.drafters.memory.request_journal as request_journal
from anespec.manifests.safe_files import Folder
from anespec.runtime.drafters.memory.owner_files import owner_folder
from anespec.runtime.drafters.memory.owner_memory import OwnerMemory
from anespec.runtime.drafters.memory.request_journal import SECONDS_BETWEEN_TRIES

LESSONS = [(text(1, 2, 3), 1), (text(4, 5), 0), (text(*range(40)), 20), (text(7), 1), (text(9, 9, 1), 2)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "vocabulary").mkdir(mode=0o700)
    with Folder.open(tmp_path / "vocabulary") as place:
        yield place


def files_of(folder: Folder) -> list[Path]:
    return sorted((folder.path / owner_folder(OWNER)).iterdir())


def teach(memory: OwnerMemory, lessons: Sequence[tuple[NDArray[np.int32], int]] = LESSONS) -> None:
    for words, answer in lessons:
        memory.fold(words, answer)


class Clock:
    """Seconds that pass where a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refuse_beyond(size: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the file system take so many bytes of a file and no more; returns how often it was asked."""
    asked: list[int] = []

    class Small(io.FileIO):
        def write(self, data: bytes, /) -> int:  # type: ignore[override]
            asked.append(len(data))
            room = size - self.tell()
            if room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data[:room])

    def new_file(place: Folder, name: str, mode: int = 0o666) -> io.FileIO:
        return Small(place.path / name, "x+")

    monkeypatch.setattr(Folder, "new_file", new_file)
    return asked


def test_a_disk_that_was_full_is_written_again_and_nothing_waits_for_a_snapshot(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with monkeypatch.context() as patch:
        asked = refuse_beyond(300, patch)
        memory = opened(folder, clock=clock)
        teach(memory, LESSONS)
        assert opened(folder, writes=False).image.tobytes() == learnt(LESSONS[:2])
        teach(memory, LESSONS[:2])
        assert len(asked) == 3, "not asked again before its time"
        clock.now += SECONDS_BETWEEN_TRIES
        teach(memory, LESSONS[:1])
        assert len(asked) == 4
        (said,) = caplog.messages
        assert "cannot be written (No space left on device)" in said and "tried again" in said
        journal = memory._files._journal  # type: ignore[union-attr]
        monkeypatch.setattr(type(journal), "write", io.FileIO.write)
        teach(memory, LESSONS[:1])
        assert len(caplog.messages) == 1
        clock.now += SECONDS_BETWEEN_TRIES
        teach(memory, LESSONS[:1])
    whole = [*LESSONS, *LESSONS[:2], *LESSONS[:1], *LESSONS[:1], *LESSONS[:1]]
    assert caplog.messages[1:] == [f"the memory of drafting {memory._where} is written again"]
    assert [path.name for path in files_of(folder)] == ["journal-000000"]
    assert opened(folder).image.tobytes() == learnt(whole), "as kill -9 leaves it"


def test_a_limit_of_the_system_leaves_whole_records(folder: Folder) -> None:
    clock = Clock()
    memory = opened(folder, clock=clock)
    teach(memory, LESSONS[:2])
    (journal,) = files_of(folder)
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    whole = journal.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 60, hard))
    try:
        teach(memory, LESSONS[2:3])
        cut = journal.stat().st_size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert cut == whole
    clock.now += SECONDS_BETWEEN_TRIES
    teach(memory, LESSONS[3:])
    assert opened(folder).image.tobytes() == learnt(LESSONS)


def test_a_folder_that_was_removed_is_made_again(folder: Folder) -> None:
    clock = Clock()
    memory = opened(folder, clock=clock)
    teach(memory, LESSONS[:2])
    shutil.rmtree(folder.path / owner_folder(OWNER))
    teach(memory, LESSONS[2:3])
    clock.now += SECONDS_BETWEEN_TRIES
    teach(memory, LESSONS[3:])
    assert opened(folder).image.tobytes() == learnt(LESSONS[2:])
    memory.flush()
    assert opened(folder).image.tobytes() == learnt(LESSONS), "a snapshot has the earlier ones, too"


def test_of_requests_that_wait_the_latest_are_kept_and_that_is_said(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_journal, "MOST_WAITING", 200)
    first, second = opened(folder), opened(folder, writes=False)
    teach(second, 4 * LESSONS)
    assert len([said for said in caplog.messages if "the oldest are dropped" in said]) == 1
    first.close()
    second.take_over()
    known = second._learner.facts(opened(folder).image).requests
    assert 0 < known < 4 * len(LESSONS)
