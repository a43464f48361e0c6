"""Lets the tests of this folder share `toy` and `drafting` with those of the engine."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
