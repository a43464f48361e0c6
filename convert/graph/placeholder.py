"""Constants whose values come later: the graph is built without a single weight in memory.

A placeholder is an array of the right shape and type whose strides are all zero, so it takes no
memory; coremltools passes it through to the writer, which asks it for the values.
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
    """Stands for a constant of `element`s; `chunks` gives the values, once (see weight_file.Chunks).

    Two with the same `values`, a weight and the name of one of its parts, stand for the same numbers.
    """

    values: tuple[DeferredWeight, str]
    element: ElementType
    chunks: Callable[[int], Iterable[Values]]


def placeholders(weight: DeferredWeight, projection: str) -> dict[str, Placeholder]:
    """The parts of a weight, by the names of the inputs that take them.

    The part that is asked for first is given as it is made. The others, which come with it, are kept until
    they are asked for; so the large one should be the first.
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
