"""A process that compiles a source's code, and stores it for other processes: see StartingSource.

python -m anespec.runtime.drafters.compiling NAME
"""

import os
import sys

from filelock import FileLock, Timeout

from anespec.runtime.drafters.kept_code import code_folder, import_compiled, is_compiled, note_compiled

PATIENCE = 600.0
"""Seconds that another process may take for the same."""


def main(name: str) -> None:
    """Compile, unless another process does so, or has."""
    folder = code_folder()
    if folder is None:
        return
    try:
        with FileLock(folder / "compiling.lock", timeout=PATIENCE):
            if not is_compiled(name):
                import_compiled(name)
                note_compiled(name)
    except (OSError, Timeout):
        return


if __name__ == "__main__":
    os.nice(5)
    main(sys.argv[1])
