"""Define a finished request as the draft memory stores it, and a bounded list of the latest requests."""

from collections import deque
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.schema import MOST_TOKENS

LONGEST_TEXT = 1 << 16
"""The most tokens of a request that are stored, the last ones; most contexts are shorter."""

TOKEN_BYTES = 4

TEXT_BYTES = 4 << 20
"""Bytes of a tenant's latest requests that are kept, so that another learner or another vocabulary can learn
them."""


@dataclass(frozen=True, eq=False)
class RequestRecord:
    """The tokens of a request's prompt and, from index `answer` on, of its output."""

    text: NDArray[np.int32]
    answer: int

    @classmethod
    def of(cls, text: NDArray[np.int32], answer: int) -> Self:
        """Return a record of a request's last LONGEST_TEXT tokens."""
        left_out = max(0, len(text) - LONGEST_TEXT)
        return cls(text[left_out:], max(0, answer - left_out))

    @classmethod
    def of_bytes(cls, tokens: object, answer: object) -> Self | None:
        """Return a request from its stored tokens (int32, little endian), or None if they are invalid."""
        if not isinstance(tokens, bytes) or not isinstance(answer, int) or len(tokens) % TOKEN_BYTES:
            return None
        text = np.frombuffer(tokens, "<i4").astype(np.int32)
        if not len(text) or not 0 <= answer <= len(text) or text.min() < 0 or text.max() >= MOST_TOKENS:
            return None
        return cls(text, answer)

    @property
    def tokens(self) -> bytes:
        """The tokens in their stored form."""
        return self.text.astype("<i4").tobytes()


class LatestRequests:
    """A list of the latest requests, whose tokens have a limited size in bytes."""

    def __init__(self, most: int) -> None:
        """Begin empty; the tokens have at most `most` bytes altogether."""
        self._most = most
        self._bytes = 0
        self._records: deque[RequestRecord] = deque()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> list[RequestRecord]:
        """The requests, the oldest first."""
        return list(self._records)

    def add(self, record: RequestRecord) -> bool:
        """Add a request; return False if the oldest ones were dropped to make room."""
        self._records.append(record)
        self._bytes += record.text.nbytes
        if self._bytes <= self._most:
            return True
        while self._bytes > self._most:
            self._bytes -= self._records.popleft().text.nbytes
        return False

    def clear(self) -> None:
        """Drop all requests."""
        self._records.clear()
        self._bytes = 0
