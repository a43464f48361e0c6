"""Run the gates in the background: a process for each model, one at a time, while no request runs.

If requests never pause, the process runs in slices between their passes.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from anespec.system.formatting import bytes_text
from anespec.system.machine import free_memory
from anespec.system.yielding_child import YieldingChild

if TYPE_CHECKING:
    from anespec.validate.check_parts import CheckAsked, CheckReport


# Time slices: a check gets a share of the time even while requests run.

SHARE = 0.1
"""The least share of the time that a check runs, however many requests there are."""

SLICE = 0.2
"""The shortest slice in seconds, since resuming and pausing the process takes time, too."""

LONGEST_SLICE = 0.5
"""The longest slice in seconds, since requests wait for it. Time owed beyond it is dropped."""


class CheckSlices:
    """The time in seconds that a paused check is owed. The caller must prevent concurrent use."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Start with a running check that is owed nothing. `clock` returns seconds."""
        self._clock = clock
        self._owed = 0.0
        self._since = clock()
        self._is_stopped = False

    def stop(self) -> None:
        """Note that the check pauses now, and subtract the time that it has run."""
        if not self._is_stopped:
            self._owed = max(0.0, self._owed - (self._clock() - self._since))
            self._since, self._is_stopped = self._clock(), True

    def go_on(self) -> None:
        """Note that the check runs from now on, and add its share of the pause."""
        if self._is_stopped:
            self._owed = self._owed_now
            self._since, self._is_stopped = self._clock(), False

    @property
    def due(self) -> float:
        """Return the length of the slice that is due now, in seconds; 0 if none is due."""
        return self._owed_now if self._is_stopped and self._owed_now >= SLICE else 0.0

    @property
    def _owed_now(self) -> float:
        stood = self._clock() - self._since if self._is_stopped else 0.0
        return min(LONGEST_SLICE, self._owed + stood * SHARE / (1.0 - SHARE))


_log = logging.getLogger(__name__)

SECONDS_TO_END = 10.0
"""Seconds to wait for the thread of a killed process; it takes longer only if the system swaps."""


class Checks:
    """The checks of all models of this process, which run one at a time. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Start with no check and no request. `clock` returns seconds."""
        self._changed = threading.Condition()
        self._clock = clock
        self._busy = 0
        self._turn: Check | None = None
        self._child: YieldingChild | None = None
        self._slices = CheckSlices(clock)
        self._in_slice = False

    def begin(
        self,
        asked: "CheckAsked",
        memory: int,
        hear: "Callable[[CheckReport], None]",
        end: Callable[[str | None], None],
    ) -> "Check":
        """Start a check: a process that runs the gates, takes about `memory` bytes, and waits for other
        checks.

        `hear` receives the process's reports. `end` is called last, with the reason if the check could not
        finish, else None. Both are called in the check's own thread, and not after the check was stopped.
        """
        return Check(self, asked, memory, hear, end)

    def tell_busy(self, busy: bool) -> None:
        """Note that one more model runs requests, or one fewer. The process is paused while any model
        does."""
        with self._changed:
            self._busy += 1 if busy else -1
            self._stop_or_go_on()

    def make_way(self, before: Callable[[], None]) -> None:
        """Let the process run for a slice if one is due, and return afterwards.

        Every model that runs requests calls this between two passes, so the process gets its share of the
        time even if requests never pause. `before` is called before a slice.
        """
        with self._changed:
            if not self._in_slice and not (self._child and self._slices.due):
                return
        before()
        with self._changed:
            child, seconds = self._child, self._slices.due
            if self._in_slice:
                self._changed.wait_for(lambda: not self._in_slice)
            elif child is not None and seconds:
                self._in_slice = True
                self._stop_or_go_on()
                self._changed.wait_for(lambda: self._child is not child, seconds)
                self._in_slice = False
                self._stop_or_go_on()
                self._changed.notify_all()

    def _stop_or_go_on(self) -> None:
        if self._child is None:
            return
        if self._busy and not self._in_slice:
            self._child.pause()
            self._slices.stop()
        else:
            self._slices.go_on()
            self._child.resume()

    def take_turn(self, check: "Check") -> bool:
        """Wait for a check's turn; return False if it was stopped before."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn is None or check.is_stopped)
            if check.is_stopped:
                return False
            self._turn = check
            return True

    def run_child(self, check: "Check", child: YieldingChild) -> None:
        """Let the check's process run from now on: while no request runs, and in its slices."""
        with self._changed:
            self._child, self._slices = child, CheckSlices(self._clock)
            self._stop_or_go_on()
            if check.is_stopped:
                child.kill()

    def end_turn(self) -> None:
        """Let the next check run."""
        with self._changed:
            self._turn = self._child = None
            self._changed.notify_all()

    def stop(self, check: "Check") -> None:
        """Stop a check, and kill its process if it runs."""
        with self._changed:
            check.is_stopped = True
            if self._turn is check and self._child is not None:
                self._child.kill()
            self._changed.notify_all()


class Check:
    """The background gates of one model. `is_stopped` is guarded by the lock of its Checks."""

    def __init__(
        self,
        checks: Checks,
        asked: "CheckAsked",
        memory: int,
        hear: "Callable[[CheckReport], None]",
        end: Callable[[str | None], None],
    ) -> None:
        """Start the check's thread; see Checks.begin."""
        self.is_stopped = False
        self._checks = checks
        self._asked = asked
        self._memory = memory
        self._hear = hear
        self._end = end
        self._last: CheckReport | None = None
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="anespec check", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> str | None:
        """Return the progress, as in `3 of 12`; None once the check has ended."""
        if self._has_ended:
            return None
        done = 0 if self._last is None else self._last.done
        return f"{self._asked.steps_before + done} of {self._asked.steps}"

    @property
    def share(self) -> float:
        """Return the share of the check's time that is done: 0 to 1."""
        return 0.0 if self._last is None else self._last.share

    @property
    def doing(self) -> str:
        """Return the name of the current step."""
        return "starting" if self._last is None else self._last.doing

    def stop(self) -> None:
        """Stop the check now; verdicts that it has recorded stay."""
        self._checks.stop(self)
        if threading.current_thread() is not self._thread:
            self._thread.join(SECONDS_TO_END)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end of the check; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if not self._checks.take_turn(self):
            return
        try:
            trouble = self._ask()
        except OSError as error:
            trouble = str(error)
        except Exception as error:
            _log.exception("the check of %s failed", self._asked.artifact)
            trouble = repr(error)
        finally:
            self._checks.end_turn()
        self._has_ended = True
        if not self.is_stopped:
            self._end(trouble)

    def _ask(self) -> str | None:
        from anespec.validate.check_parts import CheckReport
        from anespec.validate.check_process import MODULE

        if (free := free_memory()) < self._memory:
            return (
                f"it would take about {bytes_text(self._memory)} of memory beside what runs, and "
                f"{bytes_text(free)} are free"
            )
        child = YieldingChild(MODULE, (self._asked.model_dump_json(),))
        try:
            self._checks.run_child(self, child)
            for line in child.lines():
                self._last = CheckReport.model_validate_json(line)
                if not self.is_stopped:
                    self._hear(self._last)
        except BaseException:
            child.kill()
            raise
        finally:
            why = child.wait()
        return why
