"""What a full disk, or a folder that goes, keeps from being written is written later."""

import errno
import io
import os
import resource
import shutil

import pytest
from stepping import Clock
from toy_memory import LESSONS, OWNER, files_of, learnt, opened, teach

import anespec.runtime.drafters.memory.request_journal as request_journal
from anespec.runtime.drafters.memory.owner_files import owner_folder
from anespec.runtime.drafters.memory.request_journal import SECONDS_BETWEEN_TRIES
from anespec.system.safe_files import Folder


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
