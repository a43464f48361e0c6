"""Where the command `anespec` begins: nothing is imported before someone is there who hears a ^C."""

import os
import sys


def main() -> None:
    """Run the command line (anespec/main.py)."""
    try:
        from anespec.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
