"""How long a silent process is waited for: as long as the system's compilers make progress.

Core ML compiles for the Neural Engine in services of the system. A process that waits for one says nothing
and uses no processor, for 20 minutes and more (MochiDiffusion#304, speech-swift#464; B), and a service works
on when its client was killed. None of it was tried on a Mac.
"""

import subprocess
import time
from collections.abc import Callable

from anespec.system.child_python import NEUTRAL_FOLDER

SERVICES = frozenset({"ANECompilerService", "aned", "coremlcompiler"})
"""Processes that compile for Core ML, by the name of their executable."""

END_COMMAND = "sudo killall ANECompilerService"
"""Ends what the compiler still works at; others did so, and their models loaded (whisper.cpp#937, B)."""

LOOK_EVERY = 5.0
"""Seconds between two looks at the compilers."""

AT_WORK = 0.1
"""Compilers that use less than this share of a processor rest."""

LONGEST_SETTLING = 1800.0
"""Seconds that are waited for compilers to rest after their client was killed."""

CompilerSeconds = Callable[[], float | None]
Clock = Callable[[], float]


def compiler_seconds() -> float | None:
    """The processor's seconds that the compilers used so far, as `ps` says; None where none of them runs."""
    command = ["ps", "-A", "-o", "time=,comm="]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LOOK_EVERY, cwd=NEUTRAL_FOLDER
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return seconds_of_compilers(said.stdout)


def seconds_of_compilers(listing: str) -> float | None:
    """The same from lines of `TIME COMMAND`; a time is `[[days-]hours:]minutes:seconds`."""
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
    """Decides when a silent process has hung: `silence` seconds without progress, `longest` in any case."""

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
        """The process said something: everything counts from now."""
        self._heard = self._progress = self._clock()
        self._look: tuple[float, float | None] | None = None

    @property
    def interval(self) -> float:
        """Seconds after which to look again."""
        return min(LOOK_EVERY, self._silence / 4)

    @property
    def seconds(self) -> float:
        """For how long it said nothing."""
        return self._clock() - self._heard

    def hung(self) -> bool:
        """Look at the compilers: whether the process is not waited for any more."""
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
    """Wait until the compilers rest, which go on with what a killed process asked for."""
    began, spent = clock(), compilers()
    while spent is not None and clock() - began < LONGEST_SETTLING:
        say(f"waiting for the compiler of the trial that was ended; `{END_COMMAND}` ends it")
        looked = clock()
        sleep(LOOK_EVERY)
        before, spent = spent, compilers()
        if not _works(before, spent, clock() - looked):
            return


def _works(before: float | None, after: float | None, seconds: float) -> bool:
    """Whether compilers that had used `before` and now `after` were at work; one that began or ended was."""
    if before is None or after is None:
        return before is not None or after is not None
    return after < before or after - before > AT_WORK * seconds
