"""The fuzz run: seeded mutations of GGUF headers, each in bounded time and memory, in a process of its own.

`make fuzz` runs 100,000. A case is known by its seed and number, so that `--case` brings it back.
"""

import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from ctypes import c_int64
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

CASE_SECONDS = 2.0
"""Processor time, so that a busy machine is not taken for a hang."""

STUCK_SECONDS = 120.0
"""Wall time: after so long without a case done the worker waits, or hangs where no alarm reaches it."""

SPARE_BYTES = 512 << 20
"""Address space that the worker gets beyond what it has once everything is imported and warm."""

CASE_BYTES = 64 << 20
"""What one case may add to the worker's resident size at any time; the largest files have 1.5 MB."""

WARM_CASES = 50
MOST_FAILURES = 200
SHARED_MEMORY = Path("/dev/shm")

Pursue = Callable[[Path, int], bool]
"""Tries the file, case number given; True where it could be converted. What it raises is a failure."""


@dataclass(frozen=True)
class Failure:
    """A case that ended neither in success nor in an AnespecError. `signature`: what went wrong where."""

    case: int
    name: str
    signature: str
    detail: str


@dataclass
class Result:
    """What a run found."""

    cases: int = 0
    converted: int = 0
    seconds: float = 0.0
    most_bytes: int = 0
    slowest_seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)


class TooSlow(BaseException):
    """The alarm of a case; no handler for ordinary exceptions takes it."""


def pursue_case(path: Path, number: int) -> bool:
    """The real pursuit; weights are read in every fourth case, since they take most of the time."""
    from pursuit import pursue

    return pursue(path, read_weights=number % 4 == 0)


def run(
    cases: int,
    *,
    seed: int = 0,
    first: int = 0,
    pursue: Pursue = pursue_case,
    case_seconds: float = CASE_SECONDS,
    stuck_seconds: float = STUCK_SECONDS,
    report: Callable[[Result], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Run cases `first` to `first + cases - 1`, in worker processes: a crash or hang of one is a failure.

    `clock` says how long a worker has done nothing.
    """
    context = multiprocessing.get_context("spawn")
    result, began, place = Result(), time.monotonic(), first
    # The folder is this process's, since a worker that crashes leaves everything as it is.
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "case.gguf"
        while place < first + cases and len(result.failures) < MOST_FAILURES:
            ours, theirs = context.Pipe(duplex=False)
            progress = context.Value(c_int64, place)
            work = (theirs, progress, path, range(place, first + cases), seed, pursue, case_seconds)
            worker = context.Process(target=_work, args=work, daemon=True)
            worker.start()
            theirs.close()
            place = _follow(ours, worker, progress, result, first + cases, stuck_seconds, report, clock)
            ours.close()
    result.seconds = time.monotonic() - began
    return result


def _follow(
    ours: Connection,
    worker: Any,
    progress: Any,
    result: Result,
    end: int,
    stuck_seconds: float,
    report: Callable[[Result], None],
    clock: Callable[[], float],
) -> int:
    """Gather what the worker sends until it is done, dead or stuck; the case to go on with."""
    seen, since = progress.value, clock()
    while True:
        try:
            if ours.poll(0.5):
                part: Result = ours.recv()
                result.cases += part.cases
                result.converted += part.converted
                result.most_bytes = max(result.most_bytes, part.most_bytes)
                result.slowest_seconds = max(result.slowest_seconds, part.slowest_seconds)
                result.failures += part.failures
                report(result)
        except EOFError:
            worker.join()
            if progress.value >= end:
                return end
            code = worker.exitcode
            result.failures.append(Failure(progress.value, "", f"the process died with {code}", ""))
            return int(progress.value) + 1
        if progress.value != seen:
            seen, since = progress.value, clock()
        elif clock() - since > stuck_seconds:
            worker.kill()
            worker.join()
            result.failures.append(Failure(seen, "", "hangs", ""))
            return int(seen) + 1


def _work(
    channel: Connection,
    progress: Any,
    path: Path,
    numbers: range,
    seed: int,
    pursue: Pursue,
    case_seconds: float,
) -> None:
    """The worker: try the cases of these numbers, each as `path`, and send what came of them now and then."""
    from cases import draw_case
    from seeds import Seed, seeds

    starts: tuple[Seed, ...] = ()
    signal.signal(signal.SIGPROF, _alarm)
    if pursue is pursue_case:
        import pursuit  # noqa: F401 (takes seconds, which are no case's)

        starts = seeds()
        for number in range(WARM_CASES):
            path.write_bytes(draw_case(starts, Random(f"warm {number}")).content())
            _try(pursue, path, number, case_seconds)
    _limit_memory()
    part = Result()
    for number in numbers:
        progress.value = number
        case = draw_case(starts, Random(f"{seed} {number}"))
        path.write_bytes(case.content())
        before, began = _restart_peak(), time.process_time()
        converted, failure = _try(pursue, path, number, case_seconds)
        part.slowest_seconds = max(part.slowest_seconds, time.process_time() - began)
        taken = _peak_bytes() - before
        part.most_bytes = max(part.most_bytes, taken)
        if failure is None and taken > CASE_BYTES:
            failure = f"takes {taken >> 20} MiB", ""
        if failure is not None:
            part.failures.append(Failure(number, case.name, *failure))
        part.cases += 1
        part.converted += converted
        if part.cases == 500 or failure is not None or number == numbers[-1]:
            channel.send(part)
            part = Result()
    progress.value = numbers.stop
    channel.close()


def _try(pursue: Pursue, path: Path, number: int, seconds: float) -> tuple[bool, tuple[str, str] | None]:
    """Whether the file could be converted, and what went wrong in which place."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return pursue(path, number), None
    except TooSlow as error:
        return False, (f"takes longer than {seconds} s at {_place(error)}", traceback.format_exc())
    except Exception as error:
        return False, (f"{type(error).__name__} at {_place(error)}", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _place(error: BaseException) -> str:
    """The last line of this project that the error went through."""
    root = str(Path(__file__).resolve().parents[2])
    files = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in ("", __file__)]
    ours = [f for f in files if f.filename.startswith(root) and "/.venv/" not in f.filename]
    tried = [f for f in ours if "/tests/" not in f.filename]
    last = (tried or ours or files)[-1]
    return f"{Path(last.filename).name}:{last.name}:{last.lineno}"


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _limit_memory() -> None:
    """Let the address space grow by a little only, where the system can hold a process to that."""
    if sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _restart_peak() -> int:
    """Let the peak of the resident size begin anew, where the system can, and give it."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    """The largest resident size since `_restart_peak`."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def case_content(seed: int, number: int) -> bytes:
    """The file of a case."""
    from cases import draw_case
    from seeds import seeds

    return draw_case(seeds(), Random(f"{seed} {number}")).content()


def main() -> int:
    """The command: run, say what was found, write it down, and fail where anything was."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="write the file of this case to case.gguf, and stop")
    chosen = parser.parse_args()
    if chosen.case is not None:
        Path("case.gguf").write_bytes(case_content(chosen.seed, chosen.case))
        return 0
    shown = _Shown()
    result = run(chosen.cases, seed=chosen.seed, first=chosen.first, report=shown)
    shown(result)
    sys.stdout.write(
        f"\r{result.cases} cases in {result.seconds:.0f} s, {result.converted} of them good files; the "
        f"slowest took {result.slowest_seconds * 1000:.0f} ms, the largest {result.most_bytes / 1e6:.0f} MB "
        f"of memory; {len(result.failures)} failures\n"
    )
    return 1 if result.failures or result.cases < chosen.cases else 0


class _Shown:
    """Prints how far a run is, and each failure when it comes, its traceback where it is the first such."""

    def __init__(self) -> None:
        self.failures = 0
        self.signatures: set[str] = set()

    def __call__(self, result: Result) -> None:
        for failure in result.failures[self.failures :]:
            sys.stdout.write(f"\rcase {failure.case} ({failure.name}): {failure.signature}\n")
            if failure.signature not in self.signatures:
                sys.stdout.write("    " + "\n    ".join(failure.detail.splitlines()[-8:]) + "\n")
            self.signatures.add(failure.signature)
        self.failures = len(result.failures)
        if sys.stdout.isatty():
            sys.stdout.write(f"\r{result.cases} cases, {len(result.failures)} failures")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    sys.exit(main())
