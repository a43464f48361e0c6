"""The gates that run in the background: one process for each model, one after another, while no request runs.

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


# Give a check a part of the time while requests run: slices between two of their passes.

SHARE = 0.1
"""Seconds of each second that a check runs at least, however many requests there are."""

SLICE = 0.2
"""Seconds: a check that is owed less stays stopped, since resuming and stopping take time too."""

LONGEST_SLICE = 0.5
"""The longest time in seconds that requests wait. If a long pass makes more owed, the rest is lost."""


class CheckSlices:
    """Counts the time that a check is owed for its pauses. The caller must prevent concurrent use."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock` gives seconds. Nothing is owed yet, and the check runs."""
        self._clock = clock
        self._owed = 0.0
        self._since = clock()
        self._is_stopped = False

    def stop(self) -> None:
        """Note that the check is paused from now on; the time that it has run is no longer owed."""
        if not self._is_stopped:
            self._owed = max(0.0, self._owed - (self._clock() - self._since))
            self._since, self._is_stopped = self._clock(), True

    def go_on(self) -> None:
        """Note that the check runs from now on."""
        if self._is_stopped:
            self._owed = self._owed_now
            self._since, self._is_stopped = self._clock(), False

    @property
    def due(self) -> float:
        """Seconds that the check runs now while requests wait: 0 if it is not owed a slice yet."""
        return self._owed_now if self._is_stopped and self._owed_now >= SLICE else 0.0

    @property
    def _owed_now(self) -> float:
        stood = self._clock() - self._since if self._is_stopped else 0.0
        return min(LONGEST_SLICE, self._owed + stood * SHARE / (1.0 - SHARE))


_log = logging.getLogger(__name__)

SECONDS_TO_END = 10.0
"""For a process that was killed; more is a system that swaps."""


class Checks:
    """The checks of a process's models, which share its processors. Safe for use from several threads."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """None is under way, and nothing runs. `clock` gives seconds."""
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
        """Run the gates in a process that takes about `memory` bytes, once no other check is running.

        `hear` receives its reports. `end` is called last, with the reason if the check could not finish, else
        None. Both are called in the check's own thread, and not after the check was stopped.
        """
        return Check(self, asked, memory, hear, end)

    def tell_busy(self, busy: bool) -> None:
        """Note that one more model runs requests, or one fewer: while any does, the process is stopped."""
        with self._changed:
            self._busy += 1 if busy else -1
            self._stop_or_go_on()

    def make_way(self, before: Callable[[], None]) -> None:
        """Let the process run for a while where it has stood still for long, and return afterwards.

        To be called between two passes, by all models that run requests: the process gets its share of the
        time also where they never end. `before` is called first where that is so.
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
        """Wait for a check's turn; False where it was stopped before."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn is None or check.is_stopped)
            if check.is_stopped:
                return False
            self._turn = check
            return True

    def run_child(self, check: "Check", child: YieldingChild) -> None:
        """Let the process of the check whose turn it is run while nothing else does, and in its slices."""
        with self._changed:
            self._child, self._slices = child, CheckSlices(self._clock)
            self._stop_or_go_on()
            if check.is_stopped:
                child.kill()

    def end_turn(self) -> None:
        """Let the next one have its turn."""
        with self._changed:
            self._turn = self._child = None
            self._changed.notify_all()

    def stop(self, check: "Check") -> None:
        """End a check, whose turn it may be."""
        with self._changed:
            check.is_stopped = True
            if self._turn is check and self._child is not None:
                self._child.kill()
            self._changed.notify_all()


class Check:
    """The gates that are asked of one model; `is_stopped` belongs to its Checks."""

    def __init__(
        self,
        checks: Checks,
        asked: "CheckAsked",
        memory: int,
        hear: "Callable[[CheckReport], None]",
        end: Callable[[str | None], None],
    ) -> None:
        """See Checks.begin."""
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
        """The progress, as in `3 of 12`; None once it has ended."""
        if self._has_ended:
            return None
        return f"{self._last.done if self._last is not None else 0} of {self._asked.steps}"

    @property
    def share(self) -> float:
        """The share of its time that is done: 0 to 1."""
        return 0.0 if self._last is None else self._last.share

    @property
    def doing(self) -> str:
        """The step that runs now."""
        return "starting" if self._last is None else self._last.doing

    def stop(self) -> None:
        """End it now; what it has recorded stays."""
        self._checks.stop(self)
        if threading.current_thread() is not self._thread:
            self._thread.join(SECONDS_TO_END)

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most for so long; whether it has ended."""
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
            _log.exception("the check of %s ends", self._asked.artifact)
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
