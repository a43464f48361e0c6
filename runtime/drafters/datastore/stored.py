"""A datastore's file: tokens of many documents, and where in them which context stands.

    header    4096 bytes: magic, version, length and sha256 of a JSON object, that object
    starts    int64 [vocabulary + 1]: where in `order` the places of each token begin
    text      int32 [entries]: the documents' tokens; -1 before, between and behind documents
    order     int32 [places]: places in `text` that a token of the same document follows, sorted by the token
              there, then by the one before it, and so on (a suffix array of the text read backwards)

All numbers are little-endian. The file is mapped, so opening it reads next to nothing.
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
MOST_ENTRIES = (1 << 31) - 1
_MAGIC = b"ANESPEC\x1a"
_VERSION = 1
_PREFIX = struct.Struct("<8sII32s")

Text = NDArray[np.int32]
Order = NDArray[np.int32]
Starts = NDArray[np.int64]


def text_begin(vocabulary_size: int) -> int:
    """The byte at which the text begins."""
    return HEADER_BYTES + 8 * (vocabulary_size + 1)


def map_array(descriptor: int, kind: str, count: int, offset: int) -> NDArray[Any]:
    """So many numbers of an open file, mapped, not to be written to."""
    if not count:
        return np.empty(0, kind)
    mapped = mmap.mmap(descriptor, offset + count * np.dtype(kind).itemsize, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, kind, count, offset)


def let_go(array: NDArray[Any]) -> None:
    """Have a mapped array take no memory until it is looked at again."""
    mapped = array.base.obj if isinstance(array.base, memoryview) else array.base
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


class Header(BaseModel):
    """The facts in a file's header. `vocabulary` is the hash of its tokens, `made_with` a version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocabulary: str = Field(pattern="^[0-9a-f]{64}$")
    vocabulary_size: int = Field(ge=1, lt=1 << 21)
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0, le=MOST_ENTRIES)
    entries: int = Field(ge=0, le=MOST_ENTRIES)
    places: int = Field(ge=0, le=MOST_ENTRIES)
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
        """The first bytes of a file."""
        said = self.model_dump_json().encode()
        packed = _PREFIX.pack(_MAGIC, _VERSION, len(said), hashlib.sha256(said).digest()) + said
        if len(packed) > HEADER_BYTES:
            raise ValueError("the header is too long")
        return packed.ljust(HEADER_BYTES, b"\0")


def read_header(path: Path) -> Header:
    """Return the facts in a file's header.

    Raises:
        StorageError: it cannot be read.
        RequestError: it is no datastore, of another version, damaged or not whole.
    """
    try:
        with open_file(path) as stream:
            begun = stream.read(HEADER_BYTES)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    if not begun.startswith(_MAGIC):
        raise RequestError(f"{path}: is no datastore; make one with `anespec datastore build`")
    again = "build it again with `anespec datastore build`"
    if len(begun) < HEADER_BYTES:
        raise RequestError(f"{path}: the datastore is cut short, at {size} bytes; {again}")
    _, version, length, digest = _PREFIX.unpack_from(begun)
    if version != _VERSION:
        raise RequestError(f"{path}: the datastore is of version {version}, not {_VERSION}; {again}")
    said = begun[_PREFIX.size : _PREFIX.size + length]
    try:
        if hashlib.sha256(said).digest() != digest:
            raise ValueError
        header = Header.model_validate_json(said)
    except (ValidationError, ValueError):
        raise RequestError(f"{path}: the datastore's header is damaged; {again}") from None
    if size != header.file_bytes:
        raise RequestError(
            f"{path}: the datastore has {size} bytes instead of {header.file_bytes}; it is cut short or "
            f"damaged, {again}"
        )
    return header


@dataclass(frozen=True)
class Datastore:
    """An open datastore. The arrays are those of the file, mapped, and cannot be written to."""

    path: Path
    header: Header
    mapped: mmap.mmap
    starts: Starts
    text: Text
    order: Order

    @classmethod
    def open(cls, path: Path, vocabulary: str) -> "Datastore":
        """Map a file of the vocabulary with this hash.

        Raises:
            StorageError: it cannot be read.
            RequestError: it is no whole datastore of this version, or of another vocabulary.
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
            mapped.madvise(mmap.MADV_WILLNEED)  # what is looked up lies anywhere
        starts = np.frombuffer(mapped, "<i8", header.vocabulary_size + 1, HEADER_BYTES)
        # Compared, not subtracted: a difference of hostile numbers wraps around, and would let them pass.
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
        """To be asked before each look-up: reading behind the end of a mapped file ends the process (SIGBUS).

        Raises:
            StorageError: the file was cut short since it was opened.
        """
        if self.mapped.size() < self.header.file_bytes:
            raise StorageError(
                f"{self.path}: the datastore was cut short while it was in use; build it again with "
                "`anespec datastore build`, and start anew"
            )
