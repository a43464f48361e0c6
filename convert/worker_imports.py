"""What building shards needs, imported in a process that is anespec's own.

coremltools imports every library that it can convert from, where it is installed, and torch and transformers
alone take three quarters of the time. A graph that is built by hand needs none, so none is found meanwhile.
coremltools goes on without them for the rest of the process, which a program that uses anespec as a library
may not want: it imports `convert.build` itself.

The garbage collector would look through each of coremltools' new objects several times and find nothing.
"""

import gc
import sys

CONVERTED_FROM = (
    "executorch", "scipy", "sklearn", "tensorflow", "torch", "torchao", "torchaudio", "torchvision",
    "transformers", "xgboost",
)  # fmt: skip

_hidden = [name for name in CONVERTED_FROM if name not in sys.modules]
gc.disable()
for name in _hidden:
    sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to say that there is none
try:
    import anespec.convert.build  # noqa: F401
finally:
    for name in _hidden:
        sys.modules.pop(name, None)
    gc.freeze()
    gc.enable()
