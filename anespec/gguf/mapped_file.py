"""One GGUF file: metadata and a tensor table over a memory-mapped file.

Written for untrusted input: every count, length and offset is checked against the file's size
before anything is allocated or read, so a small hostile file costs little and raises `GGUFError`.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
Block layouts come from the `gguf` package.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from anespec.gguf import MAGIC
from anespec.gguf.other_weights import refuse_other_weights
from anespec.system.errors import GGUFError, NotFoundError, StorageError, unreadable
from anespec.system.formatting import quoted

SUPPORTED_VERSIONS = (2, 3)
MAX_TENSOR_RANK = 4
MAX_KEY_BYTES = 65535
MAX_TENSOR_NAME_BYTES = 64
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

Scalar = int | float | bool | str
MetadataValue = Scalar | list[int] | list[float] | list[bool] | list[str] | NDArray[np.generic]

_SCALARS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
NUMPY_TYPES: Mapping[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """An entry of the tensor table.

    `shape` is in numpy order (rows first): a projection is (out, in). `offset` is in bytes from the start of
    the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Return the number of elements in the tensor."""
        return math.prod(self.shape)


class _Cursor:
    """A reader of little-endian values; its errors name what was read when the buffer ended."""

    def __init__(self, buffer: memoryview, path: Path) -> None:
        self.buffer = buffer
        self.path = path
        self.offset = 0

    def take(self, size: int, what: str) -> memoryview:
        if size < 0 or self.offset + size > len(self.buffer):
            raise GGUFError(
                f"{self.path}: the file ends inside {what} (byte {self.offset} of "
                f"{len(self.buffer)}); it is truncated or corrupt: download it again"
            )
        piece = self.buffer[self.offset : self.offset + size]
        self.offset += size
        return piece

    def scalar(self, code: str, what: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(code, self.take(struct.calcsize(code), what))[0]
        return value

    def count(self, what: str, item_bytes: int) -> int:
        """Read a 64-bit count; its items of at least `item_bytes` each must fit in the rest of the file."""
        value = int(self.scalar("<Q", what))
        if value * item_bytes > len(self.buffer) - self.offset:
            raise GGUFError(
                f"{self.path}: {what} is {value}, more than the rest of the file can hold; "
                "it is truncated or corrupt: download it again"
            )
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        size = self.count(f"the length of {what}", 1)
        if limit is not None and size > limit:
            raise GGUFError(f"{self.path}: {what} is {size} bytes long; the limit is {limit}")
        try:
            return str(self.take(size, what), "utf-8")
        except UnicodeDecodeError as error:
            raise GGUFError(f"{self.path}: {what} is not valid UTF-8 ({error.reason})") from None


class MappedFile:
    """A mapped GGUF file, by itself; it may be a part of a model, which GGUFFile opens as a whole.

    Metadata strings are decoded at once; numeric arrays and tensors stay views of the mapping.
    """

    def __init__(self, path: Path) -> None:
        """Map `path` and parse its header.

        Raises:
            StorageError: the file cannot be opened.
            GGUFError: the file is not GGUF, is truncated, or its tables are inconsistent.
            UnsupportedModelError: the path has weights that are not GGUF.
        """
        self.path = path
        try:
            if self.path.is_fifo():
                raise StorageError(f"{self.path}: is a pipe; save its output to a file first")
            with self.path.open("rb") as file:
                self.nbytes = file.seek(0, 2)
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.nbytes else None
        except IsADirectoryError:
            refuse_other_weights(self.path)
            raise StorageError(f"{self.path}: is a folder, not a GGUF file") from None
        except FileNotFoundError:
            raise NotFoundError(f"{self.path}: no such file") from None
        except OSError as error:
            raise unreadable(self.path, error) from error
        cursor = _Cursor(memoryview(self._mapping or b""), self.path)
        magic = bytes(cursor.buffer[:4])
        if magic != MAGIC:
            refuse_other_weights(self.path)
            raise GGUFError(f"{self.path}: not a GGUF file (it starts with {magic!r}, not {MAGIC!r})")
        cursor.offset = 4
        self.version = int(cursor.scalar("<I", "the version"))
        if self.version not in SUPPORTED_VERSIONS:
            swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
            why = (
                "it is big endian: convert it to little endian first"
                if swapped in SUPPORTED_VERSIONS
                else "convert it again with a current llama.cpp"
            )
            raise GGUFError(f"{self.path}: GGUF version {self.version} is not supported; {why}")
        tensor_count = cursor.count("the number of tensors", 24)
        key_count = cursor.count("the number of metadata keys", 13)
        self.metadata: dict[str, MetadataValue] = self._read_metadata(cursor, key_count)
        self.tensors: dict[str, TensorInfo] = self._read_tensors(cursor, tensor_count)

    def _read_metadata(self, cursor: _Cursor, count: int) -> dict[str, MetadataValue]:
        metadata: dict[str, MetadataValue] = {}
        for index in range(count):
            key = cursor.string(f"metadata key {index}", MAX_KEY_BYTES)
            if key in metadata:
                raise GGUFError(
                    f"{self.path}: the metadata key {quoted(key)} appears twice, so its value is ambiguous; "
                    "write the file again with a current converter"
                )
            metadata[key] = self._read_value(cursor, f"the value of {quoted(key)}")
        return metadata

    def _read_value(self, cursor: _Cursor, what: str) -> MetadataValue:
        kind = int(cursor.scalar("<I", what))
        if kind == _STRING:
            return cursor.string(what)
        if kind in _SCALARS:
            return cursor.scalar(_SCALARS[kind], what)
        if kind != _ARRAY:
            raise GGUFError(f"{self.path}: {what} has the unknown type {kind}")
        item = int(cursor.scalar("<I", what))
        if item == _STRING:
            count = cursor.count(f"the item count of {what}", 8)
            return [cursor.string(what) for _ in range(count)]
        if item not in NUMPY_TYPES:
            raise GGUFError(f"{self.path}: {what} is an array of the unsupported type {item}")
        dtype = np.dtype(NUMPY_TYPES[item])
        count = cursor.count(f"the item count of {what}", dtype.itemsize)
        return np.frombuffer(cursor.take(count * dtype.itemsize, what), dtype=dtype)

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, TensorInfo]:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            isinstance(alignment, bool)
            or not isinstance(alignment, int)
            or not 0 < alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise unfit(self.path, "general.alignment", "a power of two", alignment)
        rows: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]] = []
        for index in range(count):
            name = cursor.string(f"the name of tensor {index}", MAX_TENSOR_NAME_BYTES)
            if not name.isprintable():
                raise GGUFError(f"{self.path}: tensor {index} is named {name!r}, which cannot be printed")
            rank = int(cursor.scalar("<I", f"the rank of tensor {name!r}"))
            if not 1 <= rank <= MAX_TENSOR_RANK:
                raise GGUFError(f"{self.path}: tensor {name!r} has rank {rank}, not 1 to 4")
            shape = tuple(int(cursor.scalar("<Q", f"the shape of {name!r}")) for _ in range(rank))
            code = int(cursor.scalar("<I", f"the type of {name!r}"))
            offset = int(cursor.scalar("<Q", f"the offset of {name!r}"))
            try:
                kind = GGMLQuantizationType(code)
            except ValueError:
                raise GGUFError(
                    f"{self.path}: tensor {name!r} has the unknown ggml type {code}; "
                    "a newer gguf package may know it"
                ) from None
            rows.append((name, shape[::-1], kind, offset))
        start = -(-cursor.offset // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in rows:
            if name in tensors:
                raise GGUFError(f"{self.path}: the tensor {name!r} appears twice")
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if min(shape) < 1 or shape[-1] % block:
                raise GGUFError(
                    f"{self.path}: tensor {name!r} has shape {shape}, which {kind.name} "
                    f"(blocks of {block}) cannot hold"
                )
            nbytes = math.prod(shape) // block * block_bytes
            if offset % alignment or start + offset + nbytes > self.nbytes:
                raise GGUFError(
                    f"{self.path}: tensor {name!r} ends at byte {start + offset + nbytes}, past the end "
                    f"of the file ({self.nbytes}) or out of alignment; it is truncated or corrupt: "
                    "download it again"
                )
            tensors[name] = TensorInfo(name, shape, kind, start + offset, nbytes)
        self._refuse_overlaps(tensors)
        end = max((info.offset + info.nbytes for info in tensors.values()), default=cursor.offset)
        self._refuse_leftovers(-(-end // alignment) * alignment)
        return tensors

    def _refuse_overlaps(self, tensors: Mapping[str, TensorInfo]) -> None:
        in_order = sorted(tensors.values(), key=lambda info: info.offset)
        for before, after in pairwise(in_order):
            if before.offset + before.nbytes > after.offset:
                raise GGUFError(
                    f"{self.path}: tensors {before.name!r} and {after.name!r} overlap; "
                    "the file is corrupt: download it again"
                )

    def _refuse_leftovers(self, end: int) -> None:
        """Check that the file ends at `end`, up to padding of the last tensor.

        No reader needs bytes after it, and hashing them may take hours.
        """
        if self.nbytes > end:
            raise GGUFError(
                f"{self.path}: its tensors end at byte {end}, but the file is {self.nbytes} bytes long; "
                "something was added to it or its table is corrupt: download it again"
            )

    def close(self) -> None:
        """Unmap the file. If views of it are alive, it is unmapped with the last one."""
        mapping, self._mapping = self._mapping, None
        try:
            if mapping is not None:
                mapping.close()
        except BufferError:
            pass

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return the bytes of a tensor as stored: uint8 of shape (rows, bytes per row), a view.

        Raises:
            StorageError: the file is closed.
        """
        if self._mapping is None:
            raise StorageError(f"{self.path}: is closed")
        data = np.frombuffer(self._mapping, np.uint8, info.nbytes, info.offset)
        return data.reshape(math.prod(info.shape[:-1]), -1)

    def forget(self, info: TensorInfo) -> None:
        """Let the system drop a tensor's pages from memory; reading it again reads the disk again."""
        start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        if self._mapping is not None and hasattr(self._mapping, "madvise"):
            self._mapping.madvise(mmap.MADV_DONTNEED, start, info.offset + info.nbytes - start)


def unfit(path: Path, key: str, wanted: str, value: object) -> GGUFError:
    """Return the error for a metadata key whose value is missing (None) or not what is wanted."""
    if value is None:
        return GGUFError(f"{path}: the metadata key {key!r} is missing")
    return GGUFError(f"{path}: the metadata key {key!r} is {quoted(str(value), 40)}, not {wanted}")
