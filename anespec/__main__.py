"""The entry point of the command `anespec`. It handles ^C from the first import on."""

import os
import sys


def main() -> None:
    """Run the command line (anespec/cli/main.py)."""
    try:
        from anespec.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
