"""Start child processes that do not trust the current folder, and leave the processors to others in them.

With `-c` and `-m`, Python puts the current folder first on the module path, so a file there that has the name
of a module would run instead of the module. multiprocessing starts its helpers that way. Other programs also
look there: `swift --version` runs a file named swift-frontend. So every process starts in NEUTRAL_FOLDER, and
gets absolute paths.

No child outlives this process: its standard input is a pipe that this process holds open, and the child exits
when the pipe closes. Its answers have a stream of their own, since libraries such as Core ML also print to
standard output.
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

_AUTOGROUP = Path("/proc/self/autogroup")

NEUTRAL_FOLDER = "/"
"""The working folder of every child process: only the system's administrator can put files there."""


def child_command(module: str) -> list[str]:
    """Return the command that runs an installed module in a separate process; its arguments may follow.

    `-P` keeps the current folder off the module path. `-I` would also remove the user's site-packages, where
    this package may be installed.
    """
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """Return the environment for a child, which then finds modules where this process does.

    Entries for the current folder are left out: the empty entry of `python -c`, the folder that `python -m`
    adds, and an empty entry of PYTHONPATH, which is hardly ever intended. Relative entries become absolute,
    since the child starts in NEUTRAL_FOLDER.
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if not _is_current_folder(entry))
    return os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": path}


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Yield a descriptor for a child's standard input: a pipe that closes with the block or this process."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def answer_stream() -> BinaryIO:
    """In a child: return a stream for answers on standard output; all other prints go to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def end_with_parent(end: Callable[[], None] | None = None) -> None:
    """In a child: exit at once when its standard input closes; nothing is ever written to it.

    `end` replaces the exit, e.g. to end the child's own children, too.
    """
    threading.Thread(target=_wait_for_end, args=(end or _end_here,), daemon=True).start()


def end_child(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process, wait for it, and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        # Closing flushes data that the killed process no longer reads.
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


def take_low_priority(niceness: int) -> None:
    """Raise this process's niceness, 1 to 19, also against processes of other sessions.

    Linux shares the processors among sessions first (sched(7), "The autogroup feature"), so in a session of
    its own a process takes half of them from another one, however nice it is. Only the niceness of the
    session counts there, and it is changed if this process leads the session.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(niceness))
