"""A background process: it has the lowest priority, and can be paused.

It leads a process group, so that all that it starts is stopped and ends with it. A stopped process does not
see that its parent ends. The system hangs up on a group that is orphaned while something in it is stopped
(POSIX), but it is no orphan where another process of the session adopts it, as in a container. So Linux is
asked to continue it; then it sees the end of its parent, and ends its group.
"""

import contextlib
import ctypes
import os
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
)
from anespec.system.formatting import last_line

LOWEST_PRIORITY = 19
LARGEST_ERROR = 1 << 16
_PAUSED = struct.Struct("d")
_PR_SET_PDEATHSIG = 1


class YieldingChild:
    """Runs an installed module, which calls `yield_to_others` first. Safe for use from several threads.

    The thread that starts it must stay until it has ended: Linux takes that for the parent.
    """

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        """Start it; its first argument is a descriptor, for `yield_to_others`.

        Raises:
            OSError: no process can be started.
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
        """Its number, which is also that of its group."""
        return self._process.pid

    def lines(self) -> Iterator[bytes]:
        """Yield its output, line by line, until it ends."""
        assert self._process.stdout is not None
        yield from self._process.stdout

    def pause(self) -> None:
        """Stop it and all that it has started, at once."""
        with self._lock:
            if self._stopped_at is None and self._signal(signal.SIGSTOP):
                self._stopped_at = time.monotonic()

    def resume(self) -> None:
        """Let it go on."""
        with self._lock:
            if self._stopped_at is None:
                return
            self._paused_seconds += time.monotonic() - self._stopped_at
            self._stopped_at = None
            # Before it goes on, so that it never reads a clock that went on without it.
            os.pwrite(self._pauses.fileno(), _PAUSED.pack(self._paused_seconds), 0)
            self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it now; the reader of `lines` sees the end."""
        with self._lock:
            self._signal(signal.SIGKILL)

    def wait(self) -> str | None:
        """Wait for the end of what prints no more, and let go of it; why it failed, None where it did not."""
        try:
            code = self._process.wait()
            self._errors.seek(0)
            said = last_line(self._errors.read(LARGEST_ERROR).decode(errors="replace"))
        finally:
            with self._lock:
                self._has_ended = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)  # what it may have left behind
                end_child(self._process)
                self._files.close()
        if code < 0:
            return f"it was ended by {signal_name(-code)}"
        return (said or f"it ended with {code}") if code else None

    def _signal(self, number: signal.Signals) -> bool:
        """Signal its group, unless it has ended and its number may be another's by now."""
        if self._has_ended:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            return True
        return False


def yield_to_others(descriptor: int) -> Callable[[], float]:
    """In the child, before anything else: end with the parent, have the lowest priority.

    What the child starts ends with the parent, too.

    Return a clock in seconds that stands still while the process is stopped.
    """
    os.nice(LOWEST_PRIORITY)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    end_with_parent(_end_own_group)

    def clock() -> float:
        paused = os.pread(descriptor, _PAUSED.size, 0)
        return time.perf_counter() - (_PAUSED.unpack(paused)[0] if paused else 0.0)

    return clock


def _end_own_group() -> None:
    os.killpg(os.getpid(), signal.SIGKILL)
