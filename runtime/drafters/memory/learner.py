"""Define the memory of a draft source: an image of bytes per tenant, and the learner that interprets it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""The alignment of an image in bytes: a cache line."""


@dataclass(frozen=True)
class MemoryFacts:
    """The content of an image: `nodes` of `room` nodes are used.

    It was learnt from `requests` requests with `tokens` tokens in total.
    """

    nodes: int
    room: int
    requests: int
    tokens: int

    @property
    def occupancy(self) -> float:
        """The share of used nodes, from 0 to 1."""
        return self.nodes / self.room if self.room else 0.0


class Learner(Protocol):
    """A learner defines the layout of an image, and learns requests into it.

    An image that was written by a learner of another name or version is not used.
    """

    @property
    def name(self) -> str:
        """The learner's name, which is stored with an image."""
        ...

    @property
    def version(self) -> int:
        """The version of the image's layout and of the meaning of its numbers."""
        ...

    def fresh(self, size: int) -> NDArray[np.uint8]:
        """Return an empty image of at most `size` bytes, aligned to ALIGNMENT.

        Raises:
            RequestError: `size` is too small for any memory.
        """
        ...

    def fold(self, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> Iterator[None]:
        """Learn a finished request in place: its prompt and, from index `answer` on, its output.

        The iterator yields after each step of about a millisecond. At these points the image is valid, and
        other users may read or change it.
        """
        ...

    def weights(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the part of an image that changes at every pass, as a view; few bytes, or none.

        Finished requests cannot restore this part, so it is stored in addition to them.
        """
        ...

    def is_sound(self, image: NDArray[np.uint8]) -> bool:
        """Return whether learning can continue from an image; from values that are not finite it cannot."""
        ...

    def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
        """Return the facts about the content of an image."""
        ...


def fold_whole(learner: Learner, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> None:
    """Learn a request at once, into an image that has no other user."""
    for _ in learner.fold(image, text, answer):
        pass


class TenantMemoryView(Protocol):
    """The memory of one tenant."""

    @property
    def image(self) -> NDArray[np.uint8]:
        """The image, which all sessions of the tenant share and change in place; always the same array."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The lock to hold while reading or changing the image; `fold` acquires it itself.

        Models of one vocabulary share the image, each on its own thread, and another thread copies it to
        write it to disk.
        """
        ...

    def fold(self, text: NDArray[np.int32], answer: int) -> None:
        """Learn a finished request and store it; for `text` and `answer` see Memory.keep."""
        ...


class Memory(Protocol):
    """The memories of all tenants, which share nothing. Safe for use from several threads."""

    def of(self, tenant: str) -> TenantMemoryView:
        """Return the memory of `tenant`, initially empty."""
        ...

    def keep(self, tenant: str, text: NDArray[np.int32], answer: int) -> None:
        """Store a finished request; it is learnt at the latest when the memory of `tenant` is next opened.

        `text` is its prompt and, from index `answer` on, its output.
        """
        ...

    def close(self) -> None:
        """Write everything to disk, and release all images; a second call does nothing."""
        ...


OpenMemory = Callable[[Learner], Memory]
"""A function that opens the memory of the loaded model for a learner; it reads nothing yet."""
