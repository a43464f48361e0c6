"""How many bytes objects of Python hold, arrays included."""

import gc
import logging
import sys
import types
from collections.abc import Iterable

import numpy as np

_NOBODYS = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    logging.Logger,
)
"""Objects that exist once for the whole process: neither counted nor followed."""


def held_bytes(roots: Iterable[object]) -> int:
    """Bytes of all that can be reached from `roots`, each object once; arrays with what they show.

    Compiled code, classes and modules do not count.
    """
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    total = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _NOBODYS) or type(each).__module__.startswith("numba"):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray) and isinstance(each.base, np.ndarray):
            waiting.append(each.base)
        elif isinstance(each, np.ndarray):
            total += each.nbytes
        else:
            total += sys.getsizeof(each)
            waiting += gc.get_referents(each)
    return total
