"""Constants whose values come later: the graph is built without a single weight in memory.

A placeholder is an array of the right shape and type whose strides are all zero, so it takes no
memory; coremltools passes it through to the writer, which asks it for the values.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.convert.weights.stored import DeferredWeight, DenseWeight, ScaledWeight

Values = NDArray[Any]


class Placeholder(np.ndarray[Any, np.dtype[Any]]):
    """Stands for a constant; `load` gives the values, once."""

    load: Callable[[], Values]


def placeholder(shape: tuple[int, ...], dtype: type, load: Callable[[], Values]) -> Placeholder:
    """An array of zeros that takes no memory and knows how to get its values."""
    array = np.broadcast_to(dtype(0), shape).view(Placeholder)
    array.load = load
    return array


def dense(weight: DeferredWeight) -> Placeholder:
    """fp16 (out, in, 1, 1)."""

    def values() -> Values:
        stored = weight.load()
        assert isinstance(stored, DenseWeight)
        return stored.values

    return placeholder((*weight.shape, 1, 1), np.float16, values)


def scaled(weight: DeferredWeight) -> tuple[Placeholder, Placeholder]:
    """int8 data (out, in, 1, 1) and fp16 scales (out, 1, 1, 1).

    The scales that come with the data are kept until they are asked for, so that a writer which takes
    the data first has the weight made once.
    """
    waiting: list[Values] = []

    def load() -> ScaledWeight:
        stored = weight.load()
        assert isinstance(stored, ScaledWeight)
        return stored

    def data() -> Values:
        stored = load()
        waiting[:] = [stored.scale]
        return stored.data

    def scale() -> Values:
        return waiting.pop() if waiting else load().scale

    return (
        placeholder((*weight.shape, 1, 1), np.int8, data),
        placeholder((weight.shape[0], 1, 1, 1), np.float16, scale),
    )
