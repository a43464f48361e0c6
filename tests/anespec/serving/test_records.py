"""Records of daemons: private, gone with them, and never taken for another process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from patience import PATIENCE
from waiting import until

from anespec.cli.main import cli
from anespec.runtime.server.options import ServeOptions
from anespec.serving import records
from anespec.serving.records import DaemonRecord, daemon_at, recorded, running_daemons, stop
from anespec.system.user_folders import state_folder

WAITS = "import signal; print(flush=True); signal.pause()"
WAITS_FOR_TWO = """
import os, signal
from pathlib import Path

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print(flush=True)
signal.sigwait([signal.SIGTERM])
Path(os.environ["XDG_STATE_HOME"], "heard").touch()
signal.sigwait([signal.SIGTERM])
"""
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def folder() -> Path:
    return state_folder() / "daemons"


@contextlib.contextmanager
def process(program: str = WAITS) -> Iterator[DaemonRecord]:
    """Something that runs, and its record as a daemon of the model `m` that drains for no time."""
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()
    try:
        yield write(
            DaemonRecord(
                pid=running.pid,
                birth=records._birth(running.pid),
                started=time.time(),
                address="http://127.0.0.1:1",
                models=("m",),
                drain_seconds=0,
                version="0",
            )
        )
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def write(record: DaemonRecord) -> DaemonRecord:
    folder().mkdir(parents=True, exist_ok=True)
    (folder() / f"{record.pid}.json").write_text(record.model_dump_json())
    return record


def test_a_daemon_is_found_while_it_runs() -> None:
    with recorded("http://127.0.0.1:1", ServeOptions(), ["a", "b"]):
        (found,) = running_daemons()
        assert (found.pid, found.models) == (os.getpid(), ("a", "b"))
        assert found.is_called("b") and found.is_called(str(os.getpid())) and not found.is_called("c")
    assert running_daemons() == []
    assert list(folder().iterdir()) == []


def test_a_record_says_what_is_served_and_checked_by_now() -> None:
    with recorded("http://127.0.0.1:1", ServeOptions(), ["a"]) as record:
        record.note({"a": "3 of 11"}, [Path("/models/a"), Path("/models/b")])
        record.serves(["a", "b"])
        (found,) = running_daemons()
        assert (found.models, found.checking) == (("a", "b"), {"a": "3 of 11"})
        assert found.loaded == ("/models/a", "/models/b")
        record.note({}, [])
        (found,) = running_daemons()
        assert (found.checking, found.loaded) == ({}, ())


def test_what_a_killed_one_has_left_is_removed() -> None:
    with process() as record:
        assert running_daemons() == [record]
        os.kill(record.pid, signal.SIGKILL)
        # A zombie, until its parent looks, has ended too.
        until(lambda: not running_daemons())
        assert list(folder().iterdir()) == []


def test_another_process_with_its_number_is_left_alone() -> None:
    with process() as other:
        stale = write(other.model_copy(update={"birth": "an earlier boot 1"}))
        assert stop([stale], now=True, report=lambda note, share: None) == []
        assert other.process is not None
        assert running_daemons() == []
        assert list(folder().iterdir()) == []


def test_what_cannot_be_read_is_left_alone() -> None:
    folder().mkdir(parents=True)
    (folder() / "1.json").write_text('{"pid": 1, "of": "a later version"}')
    assert running_daemons() == []
    assert len(list(folder().iterdir())) == 1


@pytest.mark.parametrize(
    "forged", [{"pid": -1}, {"pid": 2**70}, {"started": 1e300}, {"drain_seconds": 1e300}, {"models": 3}]
)
def test_what_no_daemon_wrote_keeps_nobody_from_seeing_the_others(forged: dict[str, object]) -> None:
    with recorded("http://127.0.0.1:1", ServeOptions(), ["a"]):
        (own,) = running_daemons()
        (folder() / "1.json").write_text(json.dumps(own.model_dump() | forged))
        assert running_daemons() == [own]


def test_ps_shows_a_record_to_the_letter() -> None:
    with recorded("http://[fe80::1]:80\x1b[31m", ServeOptions(), ["[red]a"]):
        shown = CliRunner().invoke(cli, ["ps"]).output
    assert "http://[fe80::1]:80" in shown and "[red]a" in shown and "\x1b" not in shown


class GivenTime:
    """The time of whoever stops daemons: so many seconds pass when something has come, and none before."""

    def __init__(self, seconds: float, has_come: Callable[[], bool]) -> None:
        self.now, self.seconds, self.has_come = 0.0, seconds, has_come
        self.deadline = time.monotonic() + PATIENCE

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert time.monotonic() < self.deadline
        time.sleep(0.01)
        if self.has_come():
            self.now = self.seconds


def test_stop_waits_and_kills_what_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with process() as gentle, process(IGNORES_TERM) as deaf:
        given = GivenTime(records.SECONDS_TO_CLOSE, lambda: gentle.process is None)
        monkeypatch.setattr(records, "time", given)
        forced = stop([gentle, deaf], now=False, report=lambda note, share: said.append(note))
        assert forced == [deaf]
        assert said[0].endswith("left")
        until(lambda: deaf.process is None)


def test_stop_now_asks_twice_and_kills_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = GivenTime(records.SECONDS_TO_REMIND, (tmp_path / "heard").exists)
    monkeypatch.setattr(records, "time", given)
    with process(WAITS_FOR_TWO) as slow:
        assert stop([slow], now=True, report=lambda note, share: None) == []
        assert slow.process is None


def test_a_daemon_runs_also_where_no_record_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with recorded("http://127.0.0.1:1", ServeOptions(), ["a"]):
        assert running_daemons() == []


@pytest.mark.parametrize(
    ("listens", "asked", "is_there"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", True),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8081", False),
        ("http://127.0.0.1:8080", "http://10.0.0.1:8080", False),
        ("http://0.0.0.0:8080", "http://127.0.0.1:8080", True),
        ("http://127.0.0.1:8080", "http://[::]:8080", True),
        ("http://[::1]:8080", "http://[::1]:8080", True),
        ("unix:/run/8080", "http://127.0.0.1:8080", False),
    ],
)
def test_who_listens_at_an_address(listens: str, asked: str, is_there: bool) -> None:
    with recorded(listens, ServeOptions(), ["m"]):
        found = daemon_at(asked)
    assert (found is not None and found.pid == os.getpid()) is is_there
