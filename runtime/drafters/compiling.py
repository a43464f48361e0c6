"""Compile a source's code in a process of its own, and store it for other processes (see StartingSource).

python -m anespec.runtime.drafters.compiling NAME
"""

import sys

from filelock import FileLock, Timeout

from anespec.runtime.drafters.kept_code import code_folder, import_compiled, is_compiled, note_compiled
from anespec.system.child_python import take_low_priority

LOCK_SECONDS = 600.0
"""Seconds to wait for another process that compiles the same code."""


def main(name: str) -> None:
    """Compile the code of the source `name`, unless it is compiled; wait for another process that does so."""
    folder = code_folder()
    if folder is None:
        return
    try:
        with FileLock(folder / "compiling.lock", timeout=LOCK_SECONDS):
            if not is_compiled(name):
                import_compiled(name)
                note_compiled(name)
    except (OSError, Timeout):
        return


if __name__ == "__main__":
    take_low_priority(19)  # A model is loaded meanwhile, and its first text should not wait for this.
    main(sys.argv[1])
