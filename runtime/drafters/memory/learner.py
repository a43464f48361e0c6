"""The memory of a draft source for one tenant: an image of bytes, and the learner that interprets it."""

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
    """The content of an image: `nodes` of `room` are used, learnt from `requests` requests of `tokens`
    tokens."""

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
        """The learner that interprets the image."""
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
        """Return the part of an image that is learnt at every pass, as a view; few bytes, or none.

        Finished requests cannot restore this part, so it is stored in addition to them.
        """
        ...

    def is_sound(self, image: NDArray[np.uint8]) -> bool:
        """Return whether learning can continue from an image: values that are not finite, for example, cannot
        recover."""
        ...

    def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
        """Return the content of the image."""
        ...


def fold_whole(learner: Learner, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> None:
    """Let an image that has no other user learn a request."""
    for _ in learner.fold(image, text, answer):
        pass


class TenantMemoryView(Protocol):
    """The memory of one tenant."""

    @property
    def image(self) -> NDArray[np.uint8]:
        """Shared by all sessions of the tenant, and learnt in place; the same array as long as it is open."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The lock for reading or changing the image; `fold` acquires it itself.

        Models of one vocabulary share the image, each on a thread of its own, and it is copied to be written.
        """
        ...

    def fold(self, text: NDArray[np.int32], answer: int) -> None:
        """Learn a finished request, and keep it."""
        ...


class Memory(Protocol):
    """The memory, separate for each tenant. Safe for use from several threads."""

    def of(self, tenant: str) -> TenantMemoryView:
        """Return the memory of `tenant`, initially empty."""
        ...

    def keep(self, tenant: str, text: NDArray[np.int32], answer: int) -> None:
        """Keep a finished request, which is learnt before `tenant` is next asked for.

        `text` is its prompt and, from index `answer` on, its output.
        """
        ...

    def close(self) -> None:
        """Write what is to last, and let go of all images; called again it does nothing."""
        ...


OpenMemory = Callable[[Learner], Memory]
"""Open the memory of the loaded model for a learner; nothing is read yet."""
