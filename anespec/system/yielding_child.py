"""Run a background process that has the lowest priority, and can be paused.

The process leads a process group, so its own children are paused and ended with it. A stopped process does
not notice the end of its parent. POSIX sends SIGHUP to an orphaned group with stopped processes, but the
group is not orphaned if another process of the session adopts it, as in a container. So Linux is asked to
continue the process when its parent ends (PR_SET_PDEATHSIG); the process then sees the end, and ends its
group.
"""

import atexit
import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from anespec.system.child_python import (
    NEUTRAL_FOLDER,
    child_command,
    child_environment,
    end_child,
    end_with_parent,
    signal_name,
    take_low_priority,
)
from anespec.system.formatting import last_line

LOWEST_PRIORITY = 19
LARGEST_ERROR = 1 << 16
_PAUSED = struct.Struct("d")
_PR_SET_PDEATHSIG = 1


class YieldingChild:
    """A child process that runs an installed module, which calls `yield_to_others` first.

    Safe to use from several threads. The thread that starts the process must live until it has ended, since
    Linux treats that thread as the parent.
    """

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        """Start the process; its first argument is a descriptor for `yield_to_others`.

        Raises:
            OSError: the process cannot be started.
        """
        self._lock = threading.Lock()
        self._stopped_at: float | None = None
        self._paused_seconds = 0.0
        self._has_ended = False
        with contextlib.ExitStack() as stack:
            self._pauses = stack.enter_context(tempfile.TemporaryFile())
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            number = self._pauses.fileno()
            self._process = subprocess.Popen(
                [*child_command(module), str(number), *arguments],
                env=child_environment(),
                cwd=NEUTRAL_FOLDER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                pass_fds=(number,),
                process_group=0,
            )
            self._files = stack.pop_all()

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its group."""
        return self._process.pid

    def lines(self) -> Iterator[bytes]:
        """Yield the process's output, line by line, until it ends."""
        assert self._process.stdout is not None
        yield from self._process.stdout

    def pause(self) -> None:
        """Pause the process and all its children."""
        with self._lock:
            if self._stopped_at is None and self._signal(signal.SIGSTOP):
                self._stopped_at = time.monotonic()

    def resume(self) -> None:
        """Resume the process and its children."""
        with self._lock:
            if self._stopped_at is None:
                return
            self._paused_seconds += time.monotonic() - self._stopped_at
            self._stopped_at = None
            # Write the pause before it resumes, so that its clock never includes the pause.
            os.pwrite(self._pauses.fileno(), _PAUSED.pack(self._paused_seconds), 0)
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process; the reader of `lines` sees the end."""
        with self._lock:
            self._signal(signal.SIGKILL)

    def wait(self) -> str | None:
        """Wait for the end of the process and release it; return why it failed, None if it did not."""
        try:
            code = self._process.wait()
            self._errors.seek(0)
            said = last_line(self._errors.read(LARGEST_ERROR).decode(errors="replace"))
        finally:
            with self._lock:
                self._has_ended = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)  # children that it may have left
                end_child(self._process)
                self._files.close()
        if code < 0:
            return f"it was ended by {signal_name(-code)}"
        return (said or f"it ended with {code}") if code else None

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal to the group, unless the process has ended, when its id may have been reused."""
        if self._has_ended:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            return True
        return False


def yield_to_others(descriptor: int) -> Callable[[], float]:
    """In the child, before anything else: end with the parent, and take the lowest priority.

    The child's own children end with the parent, too. Return a clock in seconds that stops while the process
    is paused.
    """
    take_low_priority(LOWEST_PRIORITY)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    end_with_parent(_end_own_group)
    atexit.register(_end_own_group_without_parent)

    def clock() -> float:
        paused = os.pread(descriptor, _PAUSED.size, 0)
        return time.perf_counter() - (_PAUSED.unpack(paused)[0] if paused else 0.0)

    return clock


def _end_own_group_without_parent() -> None:
    """End the group if the parent has ended. Its pipe is closed then, and nothing is ever written to it."""
    # Nobody reads the output of this process any more, so it may fail before its other thread sees the end.
    with contextlib.suppress(OSError):
        if select.select([0], [], [], 0)[0]:
            _end_own_group()


def _end_own_group() -> None:
    os.killpg(os.getpid(), signal.SIGKILL)
