"""Lets the tests of this folder share `toy` and `drafting`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
