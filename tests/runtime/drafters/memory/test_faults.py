"""What a full disk, a busy file or a removed folder keeps from being written is written later."""

import resource
import shutil
import sqlite3
import subprocess
from pathlib import Path

import numpy as np
import pytest
from stepping import Clock
from toy_memory import REQUESTS, closed, learnt, opened, stored, teach

import anespec.runtime.drafters.memory.database as database_module
import anespec.runtime.drafters.memory.tenant_memory as tenant_memory
from anespec.runtime.drafters.memory.database import MemoryDatabase
from anespec.runtime.drafters.memory.database_access import SECONDS_BETWEEN_TRIES

LARGE = (np.arange(50_000, dtype=np.int32), 1)


def test_a_full_disk_is_told_once_and_written_again(
    vocabulary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    memory = opened(vocabulary, clock=clock)
    teach(memory, REQUESTS[:2])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        teach(memory, [LARGE, *REQUESTS[2:4]])
        (said,) = caplog.messages
        assert "memory.sqlite: cannot be used (disk I/O error)" in said and "in memory alone" in said
        assert len(stored(vocabulary)[1]) == 2
        clock.now += SECONDS_BETWEEN_TRIES
        teach(memory, REQUESTS[4:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(caplog.messages) == 1
    teach(memory, REQUESTS[:1])
    assert len(stored(vocabulary)[1]) == 2, "not asked again before its time"
    clock.now += SECONDS_BETWEEN_TRIES
    teach(memory, REQUESTS[:1])
    assert caplog.messages[1:] == [f"{vocabulary}: the draft memory can be written again"]
    right = learnt([*REQUESTS[:2], LARGE, *REQUESTS[2:], REQUESTS[0], REQUESTS[0]])
    assert opened(vocabulary).image.tobytes() == right, "as kill -9 leaves it"


def test_a_disk_without_room_is_called_so(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = opened(vocabulary)
    teach(memory, REQUESTS[:1])
    assert memory._access._database is not None
    memory._access._database._connection.execute("PRAGMA max_page_count = 1").fetchall()
    teach(memory, [LARGE])
    assert "cannot be used (No space left on device)" in caplog.text
    assert closed(memory) == learnt([REQUESTS[0], LARGE]) == opened(vocabulary).image.tobytes()


def test_an_image_that_could_not_be_written_is_written_later(
    vocabulary: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened(vocabulary)
    teach(memory)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDatabase, "save_image", full)
        memory.flush()
    assert stored(vocabulary)[0] is None
    memory.flush()
    assert stored(vocabulary)[0] is not None
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_a_file_that_another_process_holds_is_written_later(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.01)
    clock = Clock()
    memory = opened(vocabulary, clock=clock)
    teach(memory, REQUESTS[:1])
    other = sqlite3.connect(vocabulary / "memory.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    teach(memory, REQUESTS[1:3])
    other.execute("ROLLBACK")
    other.close()
    assert "is locked" in caplog.text
    clock.now += SECONDS_BETWEEN_TRIES
    teach(memory, REQUESTS[3:])
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


@pytest.mark.parametrize("removed", ["folder", "file"])
def test_what_was_removed_is_made_again(
    vocabulary: Path, removed: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    memory = opened(vocabulary, clock=clock)
    teach(memory, REQUESTS[:2])
    if removed == "folder":
        shutil.rmtree(vocabulary)
    else:
        for path in vocabulary.iterdir():
            path.unlink()
    teach(memory, REQUESTS[2:3])
    assert "No such file or directory" in caplog.text
    clock.now += SECONDS_BETWEEN_TRIES
    teach(memory, REQUESTS[3:])
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS[2:])
    assert closed(memory) == learnt(REQUESTS)
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS), "an image has the earlier ones, too"


def test_of_requests_that_wait_the_latest_are_kept_and_that_is_said(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tenant_memory, "MAX_WAITING_BYTES", 200)
    vocabulary.write_text("in the way")
    memory = opened(vocabulary)
    teach(memory, 4 * REQUESTS)
    assert len([said for said in caplog.messages if "the oldest are dropped" in said]) == 1
    vocabulary.unlink()
    assert closed(memory) == opened(vocabulary).image.tobytes()
    assert 0 < len(stored(vocabulary)[1]) < 4 * len(REQUESTS)


def test_a_database_that_opens_late_is_learnt_before_what_waits(vocabulary: Path) -> None:
    first = opened(vocabulary)
    teach(first, REQUESTS[:2])
    closed(first)
    vocabulary.rename(vocabulary.with_name("away"))
    vocabulary.write_text("in the way")
    clock = Clock()
    memory = opened(vocabulary, clock=clock)
    teach(memory, REQUESTS[2:3])
    assert memory.image.tobytes() == learnt(REQUESTS[2:3])
    vocabulary.unlink()
    vocabulary.with_name("away").rename(vocabulary)
    clock.now += SECONDS_BETWEEN_TRIES
    teach(memory, REQUESTS[3:])
    assert memory.image.tobytes() == learnt(REQUESTS) == opened(vocabulary).image.tobytes()


def test_a_file_system_without_shared_memory_is_told_and_used(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite locks with files beside it then, and keeps no log; so do network file systems."""
    connect = sqlite3.connect

    def without(path: str, **options: object) -> sqlite3.Connection:
        return connect(f"{path}&vfs=unix-dotfile" if "uri" in options else path, **options)  # type: ignore

    monkeypatch.setattr(database_module.sqlite3, "connect", without)
    memory = opened(vocabulary)
    teach(memory)
    assert closed(memory) == learnt(REQUESTS) == opened(vocabulary).image.tobytes()
    (said,) = caplog.messages
    assert "shares no memory between processes" in said


@pytest.mark.parametrize("has_log", [True, False])
def test_a_file_system_that_is_only_read_is_read(
    vocabulary: Path, has_log: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(vocabulary)
    teach(first)
    closed(first)
    if not has_log:
        plain = sqlite3.connect(vocabulary / "memory.sqlite")
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        plain.close()
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for options in (("--bind",), ("-o", "remount,ro,bind")):
        if subprocess.run(
            ["mount", *options, vocabulary, mounted], capture_output=True, check=False
        ).returncode:
            pytest.skip("needs the right to mount a file system")
    try:
        memory = opened(mounted)
        assert memory.image.tobytes() == learnt(REQUESTS)
        assert not caplog.messages
        teach(memory, REQUESTS[:1])
        assert closed(memory) == learnt([*REQUESTS, REQUESTS[0]])
        assert len(caplog.messages) == 1
    finally:
        subprocess.run(["umount", "-l", mounted], check=True)
    assert len(stored(vocabulary)[1]) == len(REQUESTS)
