"""A prompt's K/V outside of the state, and its file format.

The file is MAGIC, the length of a header, the header as JSON, the K/V as fp16 in its order, and a SHA-256
over all that. Nothing of it is trusted before the digest was compared, and no more is read than K/V can take.
A digest detects damage, not forgery, so another user's file is not used: it may hold any K/V.
"""

import hashlib
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from anespec.manifests.schema import Count, Index, Record
from anespec.manifests.verdicts import RunEnvironment
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import bytes_text, printable
from anespec.system.safe_files import Folder, open_file

MAGIC = b"anespec prompt 1\n"
LARGEST_HEADER = 1 << 26
"""Bytes; some ten million tokens."""

_LENGTH_BYTES = 8
_DIGEST_BYTES = 32

Shape = tuple[Count, Count, Count, Count]
"""Of one state: 1, KV heads, positions, head dimension."""


class UnusableError(AnespecError):
    """A file of a prompt that is damaged, or was written elsewhere; the sentence says which."""


@dataclass(frozen=True)
class SavedPrefix:
    """The K/V of a prompt, as far as a row of its last token and one behind it look back.

    `values[pool]` has one array [1, KV heads, positions, head_dim] per state of the pool, for the positions
    from `first[pool]` to the prompt's end.
    """

    tokens: tuple[int, ...]
    first: tuple[int, ...]
    values: tuple[tuple[NDArray[np.float16], ...], ...]

    @property
    def bytes(self) -> int:
        """The bytes of the K/V."""
        return sum(array.nbytes for pool in self.values for array in pool)


class _Header(Record):
    """The header before the K/V."""

    circumstances: RunEnvironment
    tokens: tuple[Index, ...] = Field(min_length=1)
    first: tuple[Index, ...]
    shapes: tuple[tuple[Shape, ...], ...]


def write_prefix(path: Path, prefix: SavedPrefix, here: RunEnvironment) -> None:
    """Write a prefix for its user alone, so that a reader sees the old file, the new one or none.

    Raises:
        StorageError: the file system refuses, or something that is no file has that name.
    """
    header = _Header(
        circumstances=here,
        tokens=prefix.tokens,
        first=prefix.first,
        shapes=tuple(tuple(array.shape for array in pool) for pool in prefix.values),
    )
    try:
        with Folder.open(path.parent) as folder:
            folder.replace_parts(path.name, _parts(header, prefix), mode=0o600)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error


def _parts(header: _Header, prefix: SavedPrefix) -> Iterator[bytes]:
    text = header.model_dump_json().encode()
    digest = hashlib.sha256()
    arrays = (array.tobytes() for pool in prefix.values for array in pool)
    for part in itertools.chain((MAGIC, len(text).to_bytes(_LENGTH_BYTES, "little"), text), arrays):
        digest.update(part)
        yield part
    yield digest.digest()


def is_prefix_file(path: Path) -> bool:
    """Return whether a file exists that this module wrote, damaged or not.

    Raises:
        StorageError: it cannot be read, or is a pipe or a device.
    """
    try:
        with open_file(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error


def read_prefix(path: Path, here: RunEnvironment, most_bytes: int) -> SavedPrefix:
    """The prefix that a file holds; `most_bytes` is what the K/V of the longest prompt take.

    Raises:
        UnusableError: the file is damaged, another user's, or was written for another artifact, backend or
            machine.
        StorageError: it cannot be read.
    """
    try:
        with open_file(path) as stream:
            if os.fstat(stream.fileno()).st_uid != os.geteuid():
                raise UnusableError(f"{path}: belongs to another user")
            digest = hashlib.sha256(MAGIC)
            if stream.read(len(MAGIC)) != MAGIC:
                raise UnusableError(f"{path}: is no saved prompt")
            length_bytes = stream.read(_LENGTH_BYTES)
            length = int.from_bytes(length_bytes, "little")
            if length > LARGEST_HEADER:
                raise _damaged(path)
            text = stream.read(length)
            header = _Header.model_validate_json(text)
            if header.circumstances != here:
                raise UnusableError(f"{path}: {_difference(header.circumstances, here)}")
            size = sum(_size(shape) for pool in header.shapes for shape in pool)
            if size > most_bytes:
                raise UnusableError(
                    f"{path}: says that it holds {bytes_text(size)}, more than any prompt's K/V here"
                )
            content = stream.read(size)
            for part in (length_bytes, text, content):
                digest.update(part)
            if stream.read(_DIGEST_BYTES + 1) != digest.digest() or len(content) != size:
                raise _damaged(path)
    except ValidationError:
        raise _damaged(path) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    return SavedPrefix(header.tokens, header.first, tuple(_arrays(header.shapes, content)))


def _arrays(shapes: Sequence[Sequence[Shape]], content: bytes) -> Iterator[tuple[NDArray[np.float16], ...]]:
    start = 0
    for pool in shapes:
        arrays = []
        for shape in pool:
            array = np.frombuffer(content, np.float16, math.prod(shape), start)
            arrays.append(array.reshape(shape))
            start += array.nbytes
        yield tuple(arrays)


def _size(shape: Shape) -> int:
    return 2 * math.prod(shape)


def _damaged(path: Path) -> UnusableError:
    return UnusableError(f"{path}: is damaged or not whole")


def _difference(there: RunEnvironment, here: RunEnvironment) -> str:
    """Return the circumstances that the file was written for."""
    if there.artifact != here.artifact:
        return "was written for another model"
    if there.backend != here.backend:
        return f"was written on {printable(there.backend)}, and this is {here.backend}"
    if (there.library_version, there.executor) != (here.library_version, here.executor):
        return f"was written by another version of {here.backend} ({printable(there.library_version)})"
    return "was written on another machine, or with another number of threads"
