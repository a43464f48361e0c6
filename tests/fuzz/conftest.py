"""Lets the tests here import the modules beside them, and the processes that they start as well."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
