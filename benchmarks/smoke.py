"""Run every benchmark for some seconds on a tiny model: its figures mean nothing, but it runs to its end.

    python benchmarks/smoke.py [NAME.py ...] [--list]

Each is run once for tables and, where it knows --json and takes no longer than LONG, once more for one JSON
object. What a benchmark leaves out, since this machine lacks a peer or a browser, it says in a line that
begins with `skipped:`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from smoke_options import FOLDER

HERE = Path(__file__).resolve().parent
HELPERS = {"flood.py", "llama_server.py", "losing_daemon.py", "smoke.py"}
"""Programs that measure nothing: clients, a build, a daemon with a fault, and this one."""

FURTHER = {"pass.py": [["--contexts", "64", "128", "--past", "8", "--backends", "openvino"]]}
"""Ways to run a benchmark that are programs of their own."""

SECONDS = 300.0
"""After which a run counts as hanging."""

LONG = 10.0
"""Seconds beyond which a benchmark is not run a second time."""


def benchmarks() -> list[Path]:
    """All programs in this folder that measure something."""
    programs = (path for path in HERE.glob("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8"))
    return sorted(path for path in programs if path.name not in HELPERS)


def ways(program: Path) -> Iterator[list[str]]:
    """The arguments of every run of a benchmark."""
    yield ["--smoke"]
    if '"--json"' in program.read_text("utf-8"):
        yield ["--smoke", "--json"]
    for further in FURTHER.get(program.name, []):
        yield ["--smoke", *further]


def fault(program: Path, arguments: list[str]) -> str | None:
    """What is wrong with a run; None where nothing is."""
    command = [sys.executable, str(program), *arguments]
    # What is compiled for drafting takes a minute, once.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(FOLDER / "compiled")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {SECONDS:.0f} s"
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith("skipped:"):
            print(f"    {line}")
    if done.returncode:
        return f"it ended with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    if "--json" in arguments:
        try:
            json.loads(done.stdout)
        except ValueError as error:
            return f"it printed no JSON object ({error}):\n{done.stdout[-2000:]}"
    return None if done.stdout or done.stderr else "it printed nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME.py", help="default: all")
    parser.add_argument("--list", action="store_true", help="only name them")
    options = parser.parse_args()
    chosen = [path for path in benchmarks() if path.name in options.names or not options.names]
    if unknown := set(options.names) - {path.name for path in chosen}:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; --list names them")
    if options.list:
        print("\n".join(path.name for path in chosen))
        return
    faults, began = 0, time.monotonic()
    for program in chosen:
        for arguments in ways(program):
            start = time.monotonic()
            said = fault(program, arguments)
            faults += said is not None
            seconds = time.monotonic() - start
            print(f"{seconds:5.1f} s  {program.name} {' '.join(arguments)}: {said or 'ok'}", flush=True)
            if seconds > LONG:
                break
    print(f"{len(chosen)} benchmarks in {time.monotonic() - began:.0f} s, {faults} faults")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
