"""Find and stop the running daemons of this user. Each daemon keeps a private record while it runs:

    STATE/anespec/daemons/PID.json

Any reader removes a record whose process has ended, or whose process id now belongs to another process. A
record that cannot be read, for example of another version, is not touched.
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from pydantic import Field, ValidationError

from anespec import __version__
from anespec.manifests.schema import Record
from anespec.runtime.server.options import LONGEST_WAIT, ServeOptions
from anespec.system.errors import StorageError
from anespec.system.formatting import counted
from anespec.system.user_folders import private_folder, state_folder

FOLDER = "daemons"
LARGEST_RECORD = 1 << 16

ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})

LATEST_START = datetime(9999, 1, 1, tzinfo=UTC).timestamp()

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger("anespec.serve")


class DaemonRecord(Record):
    """A running daemon.

    `started` is the start of its process, in seconds since 1970. `models` are the names that it serves;
    `loaded` are the folders of the artifacts in its memory.

    `birth` distinguishes its process from a later one with the same id. `checking` is the progress of its
    background gates.
    """

    pid: int = Field(gt=0)
    birth: str
    started: float = Field(ge=0, le=LATEST_START)
    address: str
    models: tuple[str, ...]
    loaded: tuple[str, ...] = ()
    checking: dict[str, str] = Field(default_factory=dict)
    drain_seconds: float = Field(ge=0, le=LONGEST_WAIT)
    version: str

    @property
    def file_name(self) -> str:
        """Return the file name of the daemon's record."""
        return f"{self.pid}.json"

    @property
    def process(self) -> psutil.Process | None:
        """Return the daemon's process; None if it has ended."""
        try:
            found = psutil.Process(self.pid)
            runs = _birth(self.pid) == self.birth and found.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return None
        return found if runs else None

    def is_called(self, name: str) -> bool:
        """Return whether the text refers to this daemon: by its process id, or by a model that it serves."""
        return name == str(self.pid) or name in self.models


def _birth(pid: int) -> str:
    """Return a process's start time, unaffected by changes of the clock. Raises OSError, psutil.Error."""
    if BOOT_ID.exists():
        after_name = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return f"{BOOT_ID.read_text().strip()} {after_name[19]}"
    return repr(psutil.Process(pid).create_time())


class KeptRecord:
    """The record of this process; each change is written to its file."""

    def __init__(self, record: DaemonRecord) -> None:
        """Start from a record that is already written."""
        self._record = record

    def serves(self, models: Sequence[str]) -> None:
        """Record the names of the served models."""
        self._change(models=tuple(models))

    def note(self, checking: Mapping[str, str], loaded: Iterable[Path]) -> None:
        """Record the progress of the background gates, by model, and the folders in memory."""
        changes = {"checking": dict(checking), "loaded": tuple(sorted(map(str, loaded)))}
        if any(getattr(self._record, name) != value for name, value in changes.items()):
            self._change(**changes)

    def _change(self, **changes: object) -> None:
        self._record = self._record.model_copy(update=changes)
        _write(self._record)


@contextlib.contextmanager
def recorded(address: str, options: ServeOptions, models: Sequence[str]) -> Iterator["KeptRecord"]:
    """Keep this process's record while the block lasts; if it cannot be written, log a warning."""
    found = DaemonRecord(
        pid=os.getpid(),
        birth=_birth(os.getpid()),
        started=psutil.Process().create_time(),
        address=address,
        models=tuple(models),
        drain_seconds=options.drain_seconds,
        version=__version__,
    )
    _write(found)
    try:
        yield KeptRecord(found)
    finally:
        _remove(found.file_name)


def running_daemons() -> list[DaemonRecord]:
    """Return the running daemons, the oldest first; remove the records of ended ones.

    Raises:
        StorageError: the folder of records is another user's, or cannot be read.
    """
    path = _folder()
    if not path.is_dir():
        return []
    found: list[DaemonRecord] = []
    with private_folder(path) as folder:
        for name in sorted(each.name for each in path.iterdir() if each.name.endswith(".json")):
            with contextlib.suppress(OSError, StorageError, ValidationError):
                record = DaemonRecord.model_validate_json(folder.read(name, LARGEST_RECORD))
                if record.process is not None:
                    found.append(record)
                else:
                    folder.remove(name)
    return sorted(found, key=lambda record: record.started)


def daemon_at(address: str) -> DaemonRecord | None:
    """Return the daemon of this user that listens at an address such as http://127.0.0.1:8080, if any does.

    A daemon that listens at all addresses matches each address, and the other way round.
    """
    asked = urlsplit(address)
    for record in running_daemons():
        found = urlsplit(record.address)
        if found.scheme == asked.scheme and found.port == asked.port:
            hosts = {found.hostname, asked.hostname}
            if len(hosts) == 1 or hosts & ALL_ADDRESSES:
                return record
    return None


def _write(record: DaemonRecord) -> None:
    try:
        with private_folder(_folder()) as folder:
            content = record.model_dump_json().encode()
            folder.replace_parts(record.file_name, (content,), durable=False, mode=0o600)
    except (StorageError, OSError) as error:
        _log.warning("`anespec ps` cannot show the current state of this daemon: %s", error)


def _remove(name: str) -> None:
    path = _folder()
    with contextlib.suppress(StorageError, OSError):
        if path.is_dir():
            with private_folder(path) as folder:
                folder.remove(name)


def _folder() -> Path:
    return state_folder() / FOLDER


# Stop running daemons from another process.

SECONDS_TO_CLOSE = 15.0
"""Seconds that a daemon has to close its models after the last answer."""

SECONDS_AT_ONCE = 5.0
SECONDS_TO_REMIND = 0.2
"""Seconds between two signals; signals that arrive together count as one."""

SECONDS_BETWEEN_LOOKS = 0.05

Report = Callable[[str, float | None], None]


def stop(records: Sequence[DaemonRecord], now: bool, report: Report) -> list[DaemonRecord]:
    """Stop daemons and wait until they have ended; return those that had to be killed.

    A daemon completes its running answers first, unless `now` is True. A daemon that has not ended in time is
    killed.

    Raises:
        StorageError: a daemon belongs to another user.
    """
    for record in records:
        _send(record, signal.SIGTERM)
    longest = max((record.drain_seconds for record in records), default=0.0)
    wait = SECONDS_AT_ONCE if now else longest + SECONDS_TO_CLOSE
    began = time.monotonic()
    reminded = not now
    while running := [record for record in records if record.process is not None]:
        passed = time.monotonic() - began
        if passed >= wait:
            for record in running:
                _send(record, signal.SIGKILL)
            break
        if not reminded and passed >= SECONDS_TO_REMIND:
            # A second signal makes the daemon end without completing its answers.
            reminded = True
            for record in running:
                _send(record, signal.SIGTERM)
        report(f"{counted(len(running), 'daemon')} left", min(passed / wait, 1.0))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return running


def _send(record: DaemonRecord, number: signal.Signals) -> None:
    process = record.process
    if process is None:
        return
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as error:
        raise StorageError(
            f"daemon {record.pid}: cannot be ended, since it belongs to another user"
        ) from error
