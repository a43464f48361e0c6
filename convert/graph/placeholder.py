"""Stand-ins for constants, so that the graph is built without any weight in memory.

A placeholder is an array of the right shape and type whose strides are all zero, so it takes no memory.
coremltools passes it to the writer, which requests the values.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import types
from anespec.convert.weights.encoding import Part
from anespec.convert.weights.stored import DeferredWeight
from anespec.gguf.element_types import ElementType

Values = NDArray[Any]


class Placeholder(np.ndarray[Any, np.dtype[Any]]):
    """An array in place of a constant of type `element`; `chunks` returns the values, once (package.Chunks).

    `values` identifies them: a weight and the name of its part. Two placeholders with the same `values` have
    the same numbers.
    """

    values: tuple[DeferredWeight, str]
    element: ElementType
    chunks: Callable[[int], Iterable[Values]]


def placeholders(weight: DeferredWeight, projection: str) -> dict[str, Placeholder]:
    """Return placeholders for the parts of a weight, by the names of the inputs that take them.

    All parts are computed together. The values of the part that is requested first are returned at once,
    those of the others are kept in memory until they are requested. So the largest should be the first.
    """
    waiting: dict[str, list[Values]] = {}

    def chunks(name: str, threads: int) -> Iterator[Values]:
        if name in waiting:
            yield from waiting.pop(name)
            return
        waiting.update({part.name: [] for part in weight.parts if part.name != name})
        for piece in weight.pieces(projection, threads):
            for other, kept in waiting.items():
                kept.append(piece[other])
            yield piece[name]

    return {
        part.name: _placeholder(part, (weight, part.name), partial(chunks, part.name))
        for part in weight.parts
    }


def _placeholder(
    part: Part, values: tuple[DeferredWeight, str], chunks: Callable[[int], Iterable[Values]]
) -> Placeholder:
    zero = np.zeros((), types.nptype_from_builtin(getattr(types, part.element.label)))
    array = np.broadcast_to(zero, part.shape).view(Placeholder)
    array.values, array.element, array.chunks = values, part.element, chunks
    return array
