"""How long a test waits for another process or thread before it says that nothing comes.

A wait ends when its event comes, so on a working product this costs nothing. `ANESPEC_TEST_PATIENCE` scales
it for a machine that is slower than any known.
"""

import os

PATIENCE = 300.0 * float(os.environ.get("ANESPEC_TEST_PATIENCE", "1"))
"""The seconds of every such wait."""
