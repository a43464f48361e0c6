"""Start child processes that do not trust the current folder.

Python puts the current folder first on the module path of whatever starts by `-c` or `-m`, and any file there
that has the name of a module would be run in the module's place. multiprocessing starts its helpers so. Other
programs look there, too: `swift --version` runs a file named swift-frontend. So every process starts in
NEUTRAL_FOLDER, and gets absolute paths. No child outlives this process: its standard input is a pipe that
this process holds open, and the child ends with it. What it answers on its standard output is its own:
libraries print there too, Core ML among them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

NEUTRAL_FOLDER = "/"
"""The working folder of every child process: only the system's administrator can put files there."""


def child_command(module: str) -> list[str]:
    """Return the command that runs an installed module in a separate process; its arguments may follow.

    `-P` keeps the current folder off the module path. `-I` would take the user's site away as well, where
    this package may be installed.
    """
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """This process's environment, by which a child finds modules where this one does.

    Entries that mean the current folder are left out: the empty entry of `python -c`, the folder itself where
    `python -m` put it, and an empty entry of PYTHONPATH, which hardly anyone means. Relative entries become
    absolute, since the child starts in NEUTRAL_FOLDER.
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if not _is_current_folder(entry))
    return os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": path}


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Give a child its standard input: a silent pipe, which ends with the block or this process."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def answer_stream() -> BinaryIO:
    """In a child: its standard output, from now on for answers alone; what else is printed is an error's."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def end_with_parent(end: Callable[[], None] | None = None) -> None:
    """In a child: end at once when its standard input does, which nothing is ever written to.

    `end` is how, where this process alone is not all that has to end.
    """
    threading.Thread(target=_wait_for_end, args=(end or _end_here,), daemon=True).start()


def end_child(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and leave nothing of it behind; streams that it was not given pipes for are none."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        # Closing writes what a killed process did not take.
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()


def signal_name(number: int) -> str:
    """Return a signal's name, e.g. `SIGKILL`; some have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _wait_for_end(end: Callable[[], None]) -> None:
    while os.read(0, 1):
        pass
    end()


def _end_here() -> None:
    os._exit(1)


def _is_current_folder(entry: str) -> bool:
    try:
        return not entry or Path(entry).samefile(Path.cwd())
    except OSError:
        return False
