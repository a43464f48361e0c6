"""A learner that anyone can check: its image says which requests it has learnt, and in which order."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.learner import MemoryFacts
from anespec.system.errors import RequestError

_HEADER = 6
"""Words of 8 bytes: requests, tokens, digest of all in order, weights (2), used nodes."""

UNSOUND = -(1 << 63)
"""A weight that nobody can go on from."""


class ToyLearner:
    """Keeps what last followed each token, and a digest of all that it was given."""

    def __init__(self, name: str = "toy", version: int = 1) -> None:
        self.name = name
        self.version = version

    def fresh(self, size: int) -> NDArray[np.uint8]:
        if size < 1024:
            raise RequestError(f"{size} bytes are too few for a memory; give it 1 kB or more")
        return np.zeros(size // 64 * 64, np.uint8)

    def fold(self, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> Iterator[None]:
        words = image.view(np.int64)
        words[0] += 1
        words[1] += len(text)
        words[2] = (int(words[2]) * 31 + answer + int(text.astype(np.int64).sum())) % (1 << 40)
        table = words[_HEADER:]
        for before, after in zip(text[:-1].tolist(), text[1:].tolist(), strict=True):
            place = before % len(table)
            words[5] += table[place] == 0
            table[place] = after + 1
        yield

    def weights(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return image[3 * 8 : 5 * 8]

    def is_sound(self, image: NDArray[np.uint8]) -> bool:
        return UNSOUND not in image.view(np.int64)[3:5]

    def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
        words = image.view(np.int64)
        return MemoryFacts(int(words[5]), len(words) - _HEADER, int(words[0]), int(words[1]))

    def follower(self, image: NDArray[np.uint8], token: int) -> int | None:
        """What last came after a token."""
        table = image.view(np.int64)[_HEADER:]
        found = int(table[token % len(table)])
        return found - 1 if found else None
