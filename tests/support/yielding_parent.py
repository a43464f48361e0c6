"""A parent of a yielding program that it stops, if it is asked to, before it says the numbers of both."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from anespec.manifests.yielding_child import YieldingChild

child = YieldingChild("yielding_program", ("runs",))
helper = int(next(child.lines()).split()[2])
if sys.argv[1] == "stopped":
    child.pause()
sys.stdout.write(f"{child.pid} {helper}\n")
sys.stdout.flush()
time.sleep(600)
