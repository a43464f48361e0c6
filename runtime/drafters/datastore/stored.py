"""Read a datastore's file: the tokens of many documents, and an index of their contexts.

    header    4096 bytes: magic, version, length and sha256 of a JSON object, then this object
    starts    int64 [vocabulary + 1]: the index in `order` at which the places of each token begin
    text      int32 [entries]: the documents' tokens; -1 before, between and after documents
    order     int32 [places]: the places in `text` that a token of the same document follows, sorted by the
              token there, then by the one before it, and so on (a suffix array of the text read backwards)

All numbers are little-endian. The file is mapped, so opening it reads almost nothing.
"""

import hashlib
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anespec.system.errors import RequestError, StorageError
from anespec.system.safe_files import open_file

HEADER_BYTES = 4096
SEPARATOR = -1
MAX_ENTRIES = (1 << 31) - 1
_MAGIC = b"ANESPEC\x1a"
_VERSION = 1
_PREFIX = struct.Struct("<8sII32s")

Text = NDArray[np.int32]
Order = NDArray[np.int32]
Starts = NDArray[np.int64]


def text_begin(vocabulary_size: int) -> int:
    """Return the byte at which the text begins."""
    return HEADER_BYTES + 8 * (vocabulary_size + 1)


def map_array(descriptor: int, kind: str, count: int, offset: int) -> NDArray[Any]:
    """Map `count` numbers of type `kind` of an open file, read-only, from byte `offset` on."""
    if not count:
        return np.empty(0, kind)
    mapped = mmap.mmap(descriptor, offset + count * np.dtype(kind).itemsize, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, kind, count, offset)


def let_go(array: NDArray[Any]) -> None:
    """Free the memory of a mapped array's pages; they are read from the file again when they are used."""
    mapped = array.base.obj if isinstance(array.base, memoryview) else array.base
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


class Header(BaseModel):
    """The facts in a file's header. `vocabulary` is its hash, `made_with` the version of anespec."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocabulary: str = Field(pattern="^[0-9a-f]{64}$")
    vocabulary_size: int = Field(ge=1, lt=1 << 21)
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0, le=MAX_ENTRIES)
    entries: int = Field(ge=0, le=MAX_ENTRIES)
    places: int = Field(ge=0, le=MAX_ENTRIES)
    made_with: str

    @property
    def text_at(self) -> int:
        """The byte at which the text begins."""
        return text_begin(self.vocabulary_size)

    @property
    def order_at(self) -> int:
        """The byte at which the order begins."""
        return self.text_at + 4 * self.entries

    @property
    def file_bytes(self) -> int:
        """The size of the whole file."""
        return self.order_at + 4 * self.places

    def packed(self) -> bytes:
        """Return the header's bytes in a file."""
        facts = self.model_dump_json().encode()
        packed = _PREFIX.pack(_MAGIC, _VERSION, len(facts), hashlib.sha256(facts).digest()) + facts
        if len(packed) > HEADER_BYTES:
            raise ValueError("the header is too long")
        return packed.ljust(HEADER_BYTES, b"\0")


def read_header(path: Path) -> Header:
    """Read the header of a datastore's file.

    Raises:
        StorageError: the file cannot be read.
        RequestError: the file is not a datastore, or is of another version, damaged or truncated.
    """
    try:
        with open_file(path) as stream:
            beginning = stream.read(HEADER_BYTES)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    if not beginning.startswith(_MAGIC):
        raise RequestError(f"{path}: is not a datastore; make one with `anespec datastore build`")
    again = "build it again with `anespec datastore build`"
    if len(beginning) < HEADER_BYTES:
        raise RequestError(f"{path}: the datastore is cut short, at {size} bytes; {again}")
    _, version, length, digest = _PREFIX.unpack_from(beginning)
    if version != _VERSION:
        raise RequestError(f"{path}: the datastore has version {version}, not {_VERSION}; {again}")
    facts = beginning[_PREFIX.size : _PREFIX.size + length]
    try:
        if hashlib.sha256(facts).digest() != digest:
            raise ValueError
        header = Header.model_validate_json(facts)
    except (ValidationError, ValueError):
        raise RequestError(f"{path}: the datastore's header is damaged; {again}") from None
    if size != header.file_bytes:
        raise RequestError(
            f"{path}: the datastore has {size} bytes instead of {header.file_bytes}, so it is cut short or "
            f"damaged; {again}"
        )
    return header


@dataclass(frozen=True)
class Datastore:
    """An open datastore. Its arrays map the file, and are read-only."""

    path: Path
    header: Header
    mapped: mmap.mmap
    starts: Starts
    text: Text
    order: Order

    @classmethod
    def open(cls, path: Path, vocabulary: str) -> "Datastore":
        """Map the file of a datastore, whose tokens must be of the vocabulary with this hash.

        Raises:
            StorageError: the file cannot be read.
            RequestError: the file is not a complete datastore of this version and vocabulary.
        """
        header = read_header(path)
        if header.vocabulary != vocabulary:
            raise RequestError(
                f"{path}: the datastore holds tokens of another vocabulary than the model's; build one with "
                "`anespec datastore build --vocab MODEL`"
            )
        try:
            with open_file(path) as stream:
                mapped = mmap.mmap(stream.fileno(), header.file_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StorageError(f"{path}: cannot be mapped ({error})") from error
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED)  # searches read everywhere in the file
        starts = np.frombuffer(mapped, "<i8", header.vocabulary_size + 1, HEADER_BYTES)
        # The numbers are compared, not subtracted: the difference of hostile numbers could wrap around.
        if starts[0] != 0 or starts[-1] != header.places or (starts[1:] < starts[:-1]).any():
            raise RequestError(
                f"{path}: the datastore is damaged; build it again with `anespec datastore build`"
            )
        return cls(
            path,
            header,
            mapped,
            starts,
            np.frombuffer(mapped, "<i4", header.entries, header.text_at),
            np.frombuffer(mapped, "<i4", header.places, header.order_at),
        )

    def require_whole(self) -> None:
        """Check that the file has not been truncated; call this before each search.

        Reading a mapping beyond the end of its file kills the process (SIGBUS).

        Raises:
            StorageError: the file was truncated since it was opened.
        """
        if self.mapped.size() < self.header.file_bytes:
            raise StorageError(
                f"{self.path}: the datastore was cut short while it was in use; build it again with "
                "`anespec datastore build`, and start again"
            )
