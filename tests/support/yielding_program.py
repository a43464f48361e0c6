"""A program that yields: it prints its clock, its priority and the number of what it has started.

The real time stands before its clock and after it.
"""

import os
import subprocess
import sys
import time

from anespec.system.yielding_child import yield_to_others


def main() -> None:
    clock = yield_to_others(int(sys.argv[1]))
    if sys.argv[2] == "fails":
        raise SystemExit("first\nit cannot go on")
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd="/")
    while True:
        times = f"{time.perf_counter()} {clock()} {time.perf_counter()}"
        sys.stdout.write(f"{times} {os.getpriority(os.PRIO_PROCESS, 0)} {helper.pid}\n")
        sys.stdout.flush()
        time.sleep(0.02)


if __name__ == "__main__":
    main()
