"""Run every benchmark for some seconds on a tiny model, to check that it works.

    python benchmarks/smoke.py [NAME.py ...] [--list] [--jobs N]

As many run at a time as there are processors. Each runs once for tables and, if it has --json and takes no
longer than LONG, once more for one JSON object. A benchmark that skips a part, since this machine lacks a
peer or a browser, prints a line that begins with `skipped:`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from smoke_options import FOLDER

HERE = Path(__file__).resolve().parent
HELPERS = {"flood.py", "llama_server.py", "losing_daemon.py", "smoke.py"}
"""Programs that measure nothing: clients, a build, a daemon with a fault, and this one."""

FURTHER = {"pass.py": [["--contexts", "64", "128", "--past", "8", "--backends", "openvino"]]}
"""Further modes of a benchmark that need a run of their own."""

SECONDS = 300.0
"""The seconds after which a run counts as hanging."""

LONG = 10.0
"""The seconds beyond which a benchmark does not run a second time."""


def benchmarks() -> list[Path]:
    """Return all programs in this folder that measure something."""
    programs = (path for path in HERE.glob("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8"))
    return sorted(path for path in programs if path.name not in HELPERS)


def ways(program: Path) -> Iterator[list[str]]:
    """Yield the arguments of every run of a benchmark."""
    yield ["--smoke"]
    if '"--json"' in program.read_text("utf-8"):
        yield ["--smoke", "--json"]
    for further in FURTHER.get(program.name, []):
        yield ["--smoke", *further]


@dataclass(frozen=True)
class Run:
    """One run of a benchmark: the skipped parts, and its fault or None."""

    way: tuple[str, ...]
    seconds: float
    skipped: tuple[str, ...]
    fault: str | None


def run(program: Path, way: list[str]) -> Run:
    """Run a benchmark once."""
    # Compiling the drafters takes a minute, once.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(FOLDER / "compiled")}
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, str(program), *way],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return Run(tuple(way), SECONDS, (), f"it did not end within {SECONDS:.0f} s")
    said = (done.stdout + done.stderr).splitlines()
    skipped = tuple(line for line in said if line.startswith("skipped:"))
    return Run(tuple(way), time.monotonic() - start, skipped, fault(done, "--json" in way))


def fault(done: subprocess.CompletedProcess[str], is_json: bool) -> str | None:
    """Return what is wrong with a finished run, or None."""
    if done.returncode:
        return f"it ended with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    if is_json:
        try:
            json.loads(done.stdout)
        except ValueError as error:
            return f"it printed no JSON object ({error}):\n{done.stdout[-2000:]}"
    return None if done.stdout or done.stderr else "it printed nothing"


def runs(program: Path) -> list[Run]:
    """Run a benchmark in each of its modes, one after another, until one takes long."""
    done: list[Run] = []
    for way in ways(program):
        done.append(run(program, way))
        if done[-1].seconds > LONG:
            break
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME.py", help="default: all")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many run at a time")
    options = parser.parse_args()
    chosen = [path for path in benchmarks() if path.name in options.names or not options.names]
    if unknown := set(options.names) - {path.name for path in chosen}:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; --list names them")
    if options.list:
        print("\n".join(path.name for path in chosen))
        return
    faults, began = 0, time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        for program, done in zip(chosen, pool.map(runs, chosen), strict=True):
            for one in done:
                print(f"{one.seconds:5.1f} s  {program.name} {' '.join(one.way)}: {one.fault or 'ok'}")
                print("".join(f"    {line}\n" for line in one.skipped), end="", flush=True)
                faults += one.fault is not None
    print(f"{len(chosen)} benchmarks in {time.monotonic() - began:.0f} s, {faults} faults")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
