"""Import what building shards needs, in a process of anespec's own.

coremltools imports every installed library from which it can convert; torch and transformers take three
quarters of the time. anespec builds its graphs directly and needs none of them, so they are hidden during the
import. coremltools then works without them for the rest of the process. A program that uses anespec as a
library may need them, so it imports `convert.build` itself.

The garbage collector is off meanwhile: it would scan coremltools' new objects several times and free nothing.
"""

import gc
import sys

HIDDEN_LIBRARIES = (
    "executorch", "scipy", "sklearn", "tensorflow", "torch", "torchao", "torchaudio", "torchvision",
    "transformers", "xgboost",
)  # fmt: skip

_hidden = [name for name in HIDDEN_LIBRARIES if name not in sys.modules]
gc.disable()
for name in _hidden:
    sys.modules[name] = None  # type: ignore[assignment]  # the import system's mark for a missing module
try:
    import anespec.convert.build  # noqa: F401
finally:
    for name in _hidden:
        sys.modules.pop(name, None)
    gc.freeze()
    gc.enable()
