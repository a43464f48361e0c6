"""What a worker needs, imported by whoever starts it.

The garbage collector would look through each of coremltools' new objects several times and find nothing.
"""

import gc

gc.disable()
import anespec.convert.build  # noqa: E402, F401

gc.freeze()
gc.enable()
