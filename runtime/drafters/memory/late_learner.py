"""A learner that is imported when it is needed, so a memory can be opened before its code is compiled."""

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.learner import Learner, MemoryFacts


class LateLearner:
    """Stand for a learner whose name and version are known (see learner.Learner)."""

    def __init__(self, name: str, version: int, make: Callable[[], Learner]) -> None:
        """Have `make` called once, by the first method that needs the learner."""
        self.name = name
        self.version = version
        self._make = make

    @cached_property
    def _learner(self) -> Learner:
        return self._make()

    def fresh(self, size: int) -> NDArray[np.uint8]:
        """Return an empty image."""
        return self._learner.fresh(size)

    def fold(self, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> Iterator[None]:
        """Learn a finished request, in steps."""
        return self._learner.fold(image, text, answer)

    def weights(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the part of an image that is learnt at every pass."""
        return self._learner.weights(image)

    def is_sound(self, image: NDArray[np.uint8]) -> bool:
        """Return whether an image can be gone on from."""
        return self._learner.is_sound(image)

    def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
        """Return what an image holds."""
        return self._learner.facts(image)
