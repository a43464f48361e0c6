"""A Core ML weight file, laid out before any of its values exist and then given in order, piece by piece.

coremltools' own writer takes each constant whole, and what it has written must be read again to be hashed.
Format (version 2): https://github.com/apple/coremltools/blob/main/mlmodel/src/MILBlob/Blob/StorageFormat.hpp.
A header; then each constant's own header and its bytes, both beginning at a multiple of 64.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.element_types import ElementType

ALIGNMENT = 64
VERSION = 2
SENTINEL = 0xDEADBEEF
HEADER = struct.Struct("<II56x")
"""Constants, version."""
BLOB_HEADER = struct.Struct("<IIQQQ32x")
"""Sentinel, type, bytes, offset of the bytes, bits of the last byte that are not used."""

Chunks = Callable[[int], Iterable[NDArray[Any]]]
"""Gives a constant's values in order, some at a time, made by as many threads as it is told.

All but the last of the arrays fill whole bytes.
"""


@dataclass(frozen=True)
class _Blob:
    element: ElementType
    count: int
    offset: int
    chunks: Chunks

    @property
    def nbytes(self) -> int:
        return self.element.nbytes((self.count,))

    @property
    def start(self) -> int:
        """The offset of its bytes."""
        return self.offset + BLOB_HEADER.size

    @property
    def end(self) -> int:
        return self.start + self.nbytes

    def header(self) -> bytes:
        unused = 8 * self.nbytes - self.element.bits * self.count
        return BLOB_HEADER.pack(SENTINEL, self.element.blob, self.nbytes, self.start, unused)


class WeightFile:
    """Constants in the order in which they are added."""

    def __init__(self) -> None:
        self._blobs: list[_Blob] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the file so far."""
        return self._blobs[-1].end if self._blobs else HEADER.size

    def add(self, element: ElementType, count: int, chunks: Chunks) -> int:
        """Give `count` values their place; returns the offset that the model's constant names."""
        offset = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        self._blobs.append(_Blob(element, count, offset, chunks))
        return offset

    def content(self, threads: int) -> Iterator[bytes | memoryview]:
        """The bytes of the file; values are asked for as their turn comes, and dropped.

        Raises:
            ValueError: a constant has another number of values than was said.
        """
        yield HEADER.pack(len(self._blobs), VERSION)
        at = HEADER.size
        for blob in self._blobs:
            yield bytes(blob.offset - at) + blob.header()
            at = blob.start
            for values in blob.chunks(threads):
                data = packed(values.reshape(-1), blob.element.bits)
                at += data.nbytes
                yield data.data.cast("B")
            if at != blob.end:
                raise ValueError(f"a constant of {blob.nbytes} bytes got {at - blob.start}")


def packed(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Numbers of less than a byte side by side, the first in the lowest bits; others as they are."""
    if bits >= 8:
        return np.ascontiguousarray(values)
    whole = values.view(np.uint8)
    if bits == 4 and len(whole) % 2 == 0:
        return whole[0::2] & 15 | whole[1::2] << 4
    each = np.unpackbits(whole[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(each, bitorder="little")
