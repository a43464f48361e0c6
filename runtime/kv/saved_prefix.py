"""Save a prompt's K/V in a file, and read such a file.

The file is MAGIC, the length of the header, the header as JSON, the K/V as fp16 in the header's order, and
the SHA-256 of all that. Nothing is used before the digest is compared, and no more is read than a prompt's
K/V can take. A digest detects damage, not forgery. So a file of another user is refused: it may hold any K/V.
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
"""The most bytes of a header: enough for some ten million tokens."""

_LENGTH_BYTES = 8
_DIGEST_BYTES = 32

Shape = tuple[Count, Count, Count, Count]
"""The shape of one state's K/V: 1, KV heads, positions, head dimension."""


class UnusableError(AnespecError):
    """A saved prompt is damaged, or was written for another model, backend or machine."""


@dataclass(frozen=True)
class SavedPrefix:
    """The K/V of a prompt that its last row and the row after it attend to.

    `values[pool]` has one array [1, KV heads, positions, head_dim] per state of the pool, for the positions
    from `first[pool]` to the prompt's end. `carried` has an array [1, heads, 1, size] per recurrent layer,
    the state at the start of the chunk of the prompt's last token.
    """

    tokens: tuple[int, ...]
    first: tuple[int, ...]
    values: tuple[tuple[NDArray[np.float16], ...], ...]
    carried: tuple[NDArray[np.float16], ...] = ()

    @property
    def parts(self) -> tuple[tuple[NDArray[np.float16], ...], ...]:
        """All arrays in the order in which a file has them."""
        return (*self.values, self.carried)

    @property
    def bytes(self) -> int:
        """The size of the K/V."""
        return sum(array.nbytes for part in self.parts for array in part)


class _Header(Record):
    """The header before the K/V."""

    circumstances: RunEnvironment
    tokens: tuple[Index, ...] = Field(min_length=1)
    first: tuple[Index, ...]
    shapes: tuple[tuple[Shape, ...], ...]
    carried: tuple[Shape, ...] = Field(default=(), exclude_if=lambda shapes: not shapes)

    @property
    def parts(self) -> tuple[tuple[Shape, ...], ...]:
        """The shapes of all arrays in the file's order."""
        return (*self.shapes, self.carried)


def write_prefix(path: Path, prefix: SavedPrefix, here: RunEnvironment) -> None:
    """Write a prefix to a file that only its user can read, in one step that never leaves half a file.

    `here` is recorded as the environment that the K/V are valid in.

    Raises:
        StorageError: the file cannot be written, or `path` exists and is not a regular file.
    """
    header = _Header(
        circumstances=here,
        tokens=prefix.tokens,
        first=prefix.first,
        shapes=tuple(tuple(array.shape for array in pool) for pool in prefix.values),
        carried=tuple(array.shape for array in prefix.carried),
    )
    try:
        with Folder.open(path.parent) as folder:
            folder.replace_parts(path.name, _parts(header, prefix), mode=0o600)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error


def _parts(header: _Header, prefix: SavedPrefix) -> Iterator[bytes]:
    text = header.model_dump_json().encode()
    digest = hashlib.sha256()
    arrays = (array.tobytes() for part in prefix.parts for array in part)
    for part in itertools.chain((MAGIC, len(text).to_bytes(_LENGTH_BYTES, "little"), text), arrays):
        digest.update(part)
        yield part
    yield digest.digest()


def is_prefix_file(path: Path) -> bool:
    """Return whether a file exists that begins as a saved prompt does, damaged or not.

    Raises:
        StorageError: the file cannot be read, or is a pipe or a device.
    """
    try:
        with open_file(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error


def read_prefix(path: Path, here: RunEnvironment, most_bytes: int) -> SavedPrefix:
    """Read a prefix from a file; `most_bytes` is the size of the longest prompt's K/V.

    Raises:
        UnusableError: the file is damaged, belongs to another user, or was written for another artifact,
            backend or machine.
        StorageError: the file cannot be read.
    """
    try:
        with open_file(path) as stream:
            if os.fstat(stream.fileno()).st_uid != os.geteuid():
                raise UnusableError(f"{path}: belongs to another user")
            digest = hashlib.sha256(MAGIC)
            if stream.read(len(MAGIC)) != MAGIC:
                raise UnusableError(f"{path}: is not a saved prompt")
            length_bytes = stream.read(_LENGTH_BYTES)
            length = int.from_bytes(length_bytes, "little")
            if length > LARGEST_HEADER:
                raise _damaged(path)
            text = stream.read(length)
            header = _Header.model_validate_json(text)
            if header.circumstances != here:
                raise UnusableError(f"{path}: {_difference(header.circumstances, here)}")
            size = sum(_size(shape) for part in header.parts for shape in part)
            if size > most_bytes:
                raise UnusableError(
                    f"{path}: claims to hold {bytes_text(size)}, more than any prompt's K/V of this model"
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
    *values, carried = _arrays(header.parts, content)
    return SavedPrefix(header.tokens, header.first, tuple(values), carried)


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
    return UnusableError(f"{path}: is damaged or incomplete")


def _difference(there: RunEnvironment, here: RunEnvironment) -> str:
    """Describe how the environment that a file was written for differs from this one."""
    if there.artifact != here.artifact:
        return "was written for another model"
    if there.backend != here.backend:
        return f"was written on {printable(there.backend)}, and this is {here.backend}"
    if (there.library_version, there.executor) != (here.library_version, here.executor):
        return f"was written by another version of {here.backend} ({printable(there.library_version)})"
    if there.folded_by != here.folded_by:
        return f"was written with another version of numpy ({printable(there.folded_by or 'none')})"
    return "was written on another machine, or with another number of threads"
