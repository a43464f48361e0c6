"""Stop running daemons from another process."""

import signal
import time
from collections.abc import Callable, Sequence

import psutil

from anespec.manifests.errors import StorageError
from anespec.manifests.formatting import counted
from anespec.serving.records import DaemonRecord

SECONDS_TO_CLOSE = 15.0
"""Seconds in which a daemon may close its models after the last answer."""

SECONDS_AT_ONCE = 5.0
SECONDS_TO_REMIND = 0.2
"""Two signals that come together are one."""

SECONDS_BETWEEN_LOOKS = 0.05

Report = Callable[[str, float | None], None]


def stop(records: Sequence[DaemonRecord], now: bool, report: Report) -> list[DaemonRecord]:
    """Have daemons end, and wait until they have; those that had to be killed.

    With `now` they wait for no answer. One that is not gone when its time is over is killed.

    Raises:
        StorageError: one does not belong to this user.
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
            # The second says that no answer is worth waiting for.
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
        raise StorageError(f"daemon {record.pid}: cannot be ended, as it is another user's") from error
