"""Decide how long to wait for a silent process: as long as the system's compilers make progress.

Core ML compiles for the Neural Engine in services of the system. A process that waits for one prints nothing
and uses no processor, for 20 minutes and more (MochiDiffusion#304, speech-swift#464; B). A service continues
after its client was killed. None of it was tried on a Mac.
"""

import subprocess
import time
from collections.abc import Callable

from anespec.system.child_python import NEUTRAL_FOLDER

SERVICES = frozenset({"ANECompilerService", "aned", "coremlcompiler"})
"""The processes that compile for Core ML, by the name of their executable."""

END_COMMAND = "sudo killall ANECompilerService"
"""A command that ends the compiler's current work; others used it, and their models loaded
(whisper.cpp#937, B)."""

POLL_INTERVAL = 5.0
"""The seconds between two measurements of the compilers."""

WORKING_SHARE = 0.1
"""Compilers that use less than this share of a processor are idle."""

LONGEST_SETTLING = 1800.0
"""The most seconds to wait until compilers are idle after their client was killed."""

CompilerSeconds = Callable[[], float | None]
Clock = Callable[[], float]


def compiler_seconds() -> float | None:
    """Return the processor time of the compilers so far, from `ps`; None if none is running."""
    command = ["ps", "-A", "-o", "time=,comm="]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=POLL_INTERVAL, cwd=NEUTRAL_FOLDER
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return seconds_of_compilers(said.stdout)


def seconds_of_compilers(listing: str) -> float | None:
    """Return the processor time from lines of `TIME COMMAND`; TIME is `[[days-]hours:]minutes:seconds`."""
    found = None
    for line in listing.splitlines():
        spent, _, command = line.strip().partition(" ")
        if command.strip().rpartition("/")[2] in SERVICES:
            found = (found or 0.0) + _seconds(spent)
    return found


def _seconds(spent: str) -> float:
    days, _, hours = spent.rpartition("-")
    total = 0.0
    for part in hours.split(":"):
        total = 60 * total + float(part)
    return 86400 * float(days or 0) + total


class Patience:
    """Decides when a silent process hangs: after `silence` seconds without progress, or after `longest`."""

    def __init__(
        self,
        silence: float,
        longest: float,
        clock: Clock = time.monotonic,
        compilers: CompilerSeconds = compiler_seconds,
    ) -> None:
        self._silence, self._longest = silence, longest
        self._clock, self._compilers = clock, compilers
        self.heard()

    def heard(self) -> None:
        """Restart all times: the process printed something."""
        self._heard = self._progress = self._clock()
        self._look: tuple[float, float | None] | None = None

    @property
    def interval(self) -> float:
        """Return the seconds after which to check again."""
        return min(POLL_INTERVAL, self._silence / 4)

    @property
    def seconds(self) -> float:
        """Return how long the process has printed nothing."""
        return self._clock() - self._heard

    def hung(self) -> bool:
        """Measure the compilers, and return whether the process hangs."""
        now, spent = self._clock(), self._compilers()
        if self._look is not None:
            looked, before = self._look
            if _works(before, spent, now - looked):
                self._progress = now
        self._look = now, spent
        return now - self._progress >= self._silence or now - self._heard >= self._longest


def settle(
    say: Callable[[str], None],
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    compilers: CompilerSeconds = compiler_seconds,
) -> None:
    """Wait until the compilers are idle; they continue to work for a process that was killed."""
    began, spent = clock(), compilers()
    while spent is not None and clock() - began < LONGEST_SETTLING:
        say(f"waiting for the compiler of the trial that was ended; `{END_COMMAND}` ends it")
        looked = clock()
        sleep(POLL_INTERVAL)
        before, spent = spent, compilers()
        if not _works(before, spent, clock() - looked):
            return


def _works(before: float | None, after: float | None, seconds: float) -> bool:
    """Return whether compilers worked between two measurements; one that started or ended did."""
    if before is None or after is None:
        return before is not None or after is not None
    return after < before or after - before > WORKING_SHARE * seconds
