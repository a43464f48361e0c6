"""Lets the tests of this folder share their helpers, and the toy verifier of the runtime's."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).resolve().parents[2] / "runtime"):
    sys.path.insert(0, str(folder))
