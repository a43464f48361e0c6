"""Lets the tests of this folder share their artifact."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
