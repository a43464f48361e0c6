"""The format of memory files: MAGIC, then records with checksums.

A record is its kind (1 byte), the size of its content and a CRC-32 over all the rest (4 bytes each, little
endian), and the content. If the process ends while a record is written, the record is incomplete: reading
stops before it. The first record of a file is its head.
"""

import json
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from anespec.manifests.schema import MOST_TOKENS, Index, Record
from anespec.runtime.drafters.memory.learner import MemoryFacts

MAGIC = b"anespec memory 1\n"

LONGEST_TEXT = 1 << 16
"""Tokens of a request that are kept, the last ones: more than most contexts hold."""

LARGEST_HEAD = 1 << 16

LARGEST_NUMBER = 1 << 53
"""No file has as many bytes, and no memory as many nodes."""

LAST_GENERATION = 999_000_000
"""No memory is ever written as often. Behind it numbers of journals are left that have nine digits."""

Generation = Annotated[int, Field(ge=0, le=LAST_GENERATION)]
Number = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]
_FRAME = struct.Struct("<BII")
_ANSWER = struct.Struct("<I")
_NAME_LENGTH = 255


class Kind(IntEnum):
    """The kinds of records: facts about the file, a finished request, or a learner's weights."""

    HEAD = 1
    LESSON = 2
    WEIGHTS = 3


class Head(Record):
    """The facts about a file: its owner, and the learner that interprets it.

    A snapshot holds an image of `image_bytes`, which had learnt `requests`, and contains all journals whose
    number is less than `generation`; `text_bytes` of lessons follow it. A journal's counts are 0. The
    learner's description of its image is only for display, and never allocates memory.
    """

    vocabulary: str
    owner: str
    learner: str
    version: Index
    generation: Generation = 0
    image_bytes: Number = 0
    image_crc: Number = 0
    text_bytes: Number = 0
    nodes: Number = 0
    room: Number = 0
    requests: Number = 0
    tokens: Number = 0

    def with_snapshot(
        self,
        generation: int,
        image: NDArray[np.uint8],
        texts: Sequence[bytes | memoryview],
        facts: MemoryFacts,
    ) -> Self:
        """These facts, for a snapshot of this image and these lessons."""
        return self.model_copy(
            update={
                "generation": generation,
                "image_bytes": image.nbytes,
                "image_crc": zlib.crc32(image.data),
                "text_bytes": sum(map(len, texts)),
                # Facts of an untrusted image may be out of range, and must not invalidate the memory.
                **{name: min(max(int(value), 0), LARGEST_NUMBER) for name, value in asdict(facts).items()},
            }
        )

    def record(self) -> bytes:
        """As the first record of a file."""
        return framed(Kind.HEAD, json.dumps(self.model_dump()).encode())

    @classmethod
    def of_content(cls, content: bytes | memoryview) -> Self | None:
        """Out of a record's content; None for what another version wrote."""
        try:
            return cls.model_validate_json(bytes(content), strict=True)
        except ValidationError:
            return None


@dataclass(frozen=True, eq=False)
class Lesson:
    """A finished request: the tokens of its prompt and, from index `answer` on, of its output."""

    text: NDArray[np.int32]
    answer: int

    @classmethod
    def of(cls, text: NDArray[np.int32], answer: int) -> Self:
        """As much of a request as is kept."""
        left_out = max(0, len(text) - LONGEST_TEXT)
        return cls(text[left_out:], max(0, answer - left_out))

    @classmethod
    def of_content(cls, content: memoryview) -> Self | None:
        """Out of a record's content; None where it is none."""
        if len(content) < _ANSWER.size or (len(content) - _ANSWER.size) % 4:
            return None
        (answer,) = _ANSWER.unpack_from(content)
        text = np.frombuffer(content, "<i4", offset=_ANSWER.size).astype(np.int32)
        if not len(text) or answer > len(text) or text.min() < 0 or text.max() >= MOST_TOKENS:
            return None
        return cls(text, answer)

    def record(self) -> bytes:
        """As a record."""
        return framed(Kind.LESSON, _ANSWER.pack(self.answer) + self.text.astype("<i4").tobytes())


def framed(kind: Kind, content: bytes) -> bytes:
    """A record."""
    checksum = zlib.crc32(content, zlib.crc32(struct.pack("<BI", kind, len(content))))
    return _FRAME.pack(kind, len(content), checksum) + content


def records(data: bytes | memoryview) -> Iterator[tuple[Kind, memoryview]]:
    """Yield kind and content of consecutive records, up to the first incomplete one."""
    for kind, whole in _whole(data):
        yield kind, whole[_FRAME.size :]


def _whole(data: bytes | memoryview) -> Iterator[tuple[Kind, memoryview]]:
    rest = memoryview(data)
    while len(rest) >= _FRAME.size:
        kind, size, checksum = _FRAME.unpack_from(rest)
        content = rest[_FRAME.size : _FRAME.size + size]
        found = zlib.crc32(content, zlib.crc32(struct.pack("<BI", kind, size)))
        if len(content) < size or found != checksum or kind not in set(Kind):
            return
        yield Kind(kind), rest[: _FRAME.size + size]
        rest = rest[_FRAME.size + size :]


def lessons(data: bytes | memoryview) -> Iterator[Lesson]:
    """The lessons among records."""
    for kind, content in records(data):
        if kind is Kind.LESSON and (lesson := Lesson.of_content(content)) is not None:
            yield lesson


class LatestTexts:
    """The last lessons, as records, of at most so many bytes altogether.

    Each was checked when it came in, so that handing them to a file takes next to nothing.
    """

    def __init__(self, most: int) -> None:
        """None yet."""
        self._most = most
        self._bytes = 0
        self._records: deque[bytes | memoryview] = deque()

    @property
    def records(self) -> list[bytes | memoryview]:
        """They, the oldest first."""
        return list(self._records)

    def add(self, record: bytes | memoryview) -> bool:
        """Add one; return False where the oldest had to go, since there is no room."""
        self._records.append(record)
        self._bytes += len(record)
        if self._bytes <= self._most:
            return True
        while self._bytes > self._most:
            self.drop_first()
        return False

    def drop_first(self) -> None:
        """Remove the oldest."""
        self._bytes -= len(self._records.popleft())

    def add_all(self, data: bytes) -> None:
        """The lessons among the records of a file."""
        for kind, whole in _whole(data):
            if kind is Kind.LESSON:
                self.add(whole)


def head_size(frame: bytes) -> int | None:
    """Bytes of the head behind its frame, out of a file's first bytes after MAGIC; None where it is none."""
    if len(frame) < _FRAME.size:
        return None
    kind, size, _ = _FRAME.unpack(frame)
    return size if kind == Kind.HEAD and size <= LARGEST_HEAD else None


FRAME_BYTES = _FRAME.size


def shown_owner(owner: str) -> str:
    """Return an owner's name in the form for a head: any characters, limited length."""
    return owner.encode("utf-8", "backslashreplace").decode()[:_NAME_LENGTH]
