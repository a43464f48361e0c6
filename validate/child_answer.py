"""What a module of ours prints when it runs in a process of its own."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence

from anespec.manifests.child_python import child_command, child_environment
from anespec.manifests.errors import AnespecError
from anespec.manifests.formatting import LONGEST_REASON, printable


def child_answer(module: str, arguments: Sequence[str], longest_wait: float) -> bytes:
    """Run a module in a new process, which ends with this one, and return its standard output.

    Raises:
        AnespecError: it failed or took more seconds than that; the last line of what it said is the reason.
    """
    try:
        with _open_pipe() as lifeline:
            done = subprocess.run(
                [*child_command(module), *arguments],
                env=child_environment(),
                stdin=lifeline,
                capture_output=True,
                timeout=longest_wait,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise AnespecError(f"it took more than {longest_wait:.0f} s") from None
    except OSError as error:
        raise AnespecError(printable(str(error), LONGEST_REASON)) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise AnespecError(printable((said or [f"it ended with {done.returncode}"])[-1], LONGEST_REASON))
    return done.stdout


@contextlib.contextmanager
def _open_pipe() -> Iterator[int]:
    """What reads from a pipe that nothing is written to, and that ends with the block or this process."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)
