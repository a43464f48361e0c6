"""A parent of a yielding program: it stops that if asked to, and says the numbers of all three."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from anespec.system.yielding_child import YieldingChild

child = YieldingChild("yielding_program", ("runs",))
helper = int(next(child.lines()).split()[4])
if sys.argv[1] == "stopped":
    child.pause()
sys.stdout.write(f"{os.getpid()} {child.pid} {helper}\n")
sys.stdout.flush()
time.sleep(600)
