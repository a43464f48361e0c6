"""What a draft source remembers of one owner: an image of bytes, and who understands it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes. Where an image begins in memory and in a file: a cache line."""


@dataclass(frozen=True)
class MemoryFacts:
    """What an image holds: `nodes` of `room` are used, learnt from `requests` requests of `tokens` tokens."""

    nodes: int
    room: int
    requests: int
    tokens: int

    @property
    def occupancy(self) -> float:
        """The share of its room that is used, from 0 to 1."""
        return self.nodes / self.room if self.room else 0.0


class Learner(Protocol):
    """Lays an image out and learns into it. An image of another name or version is not used."""

    @property
    def name(self) -> str:
        """Who understands the image."""
        ...

    @property
    def version(self) -> int:
        """Of the image's layout and of what its numbers mean."""
        ...

    def fresh(self, size: int) -> NDArray[np.uint8]:
        """An empty image of at most `size` bytes, aligned to ALIGNMENT.

        Raises:
            RequestError: `size` is too small for any memory.
        """
        ...

    def fold(self, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> Iterator[None]:
        """Learn a finished request in place: its prompt and, from index `answer` on, its output.

        Each step of about a millisecond ends with a yield; the image is sound there, and others may use it.
        """
        ...

    def weights(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The part of an image that is learnt at every pass, a view of it; few bytes, none where none is.

        It is what a journal of finished requests cannot give back, so it is kept beside them.
        """
        ...

    def is_sound(self, image: NDArray[np.uint8]) -> bool:
        """Whether an image of its own can be gone on from: what is not finite, for one, never is again."""
        ...

    def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
        """What the image holds."""
        ...


def fold_whole(learner: Learner, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> None:
    """Have an image that nobody else uses learn a request."""
    for _ in learner.fold(image, text, answer):
        pass


class Remembered(Protocol):
    """What is remembered of one owner."""

    @property
    def image(self) -> NDArray[np.uint8]:
        """Shared by all sessions of the owner, and learnt in place; the same array as long as it is open."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by whoever reads or changes the image; `fold` takes it itself.

        Models of one vocabulary share it, each on a thread of its own, and it is copied to be written.
        """
        ...

    def fold(self, text: NDArray[np.int32], answer: int) -> None:
        """Learn a finished request, and keep it."""
        ...


class Memory(Protocol):
    """What is remembered, apart by owner. Safe for use from several threads."""

    def of(self, owner: str) -> Remembered:
        """What is remembered of `owner`: nothing at first."""
        ...

    def keep(self, owner: str, text: NDArray[np.int32], answer: int) -> None:
        """Keep a finished request, which is learnt before `owner` is next asked for.

        `text` is its prompt and, from index `answer` on, its output.
        """
        ...

    def close(self) -> None:
        """Write what is to last, and let go of all images; called again it does nothing."""
        ...


OpenMemory = Callable[[Learner], Memory]
"""Opens the memory of the model that is loaded, for whoever learns into it; nothing is read yet."""
