"""What a module of ours prints when it runs in a process of its own."""

import subprocess
from collections.abc import Sequence

from anespec.manifests.child_python import child_command, child_environment, lifeline
from anespec.manifests.errors import AnespecError, StorageError
from anespec.manifests.formatting import LONGEST_REASON, last_line, printable


def child_answer(module: str, arguments: Sequence[str], longest_wait: float) -> bytes:
    """Run a module in a new process, which ends with this one, and return its standard output.

    Raises:
        StorageError: it ended with that error's code, as it does where the disk refuses.
        AnespecError: it failed or took more seconds than that; the last line of what it said is the reason.
    """
    try:
        with lifeline() as held:
            done = subprocess.run(
                [*child_command(module), *arguments],
                env=child_environment(),
                stdin=held,
                capture_output=True,
                timeout=longest_wait,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise AnespecError(f"it took more than {longest_wait:.0f} s") from None
    except OSError as error:
        raise AnespecError(printable(str(error), LONGEST_REASON)) from error
    if done.returncode:
        said = last_line(done.stderr.decode(errors="replace"))
        kind = StorageError if done.returncode == StorageError.exit_code else AnespecError
        raise kind(said or f"it ended with {done.returncode}")
    return done.stdout
