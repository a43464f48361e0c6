"""Arrays of numbers of less than a byte, left as they are stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm, prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PackedType:
    """Integers of `bits` bits, in two's complement where `signed`."""

    bits: int
    signed: bool = False

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of an array of that shape."""
        return -(-prod(shape) * self.bits // 8)


PACKED_TYPES: Mapping[int, PackedType] = MappingProxyType(
    {25: PackedType(4, signed=True), 35: PackedType(4), 36: PackedType(2), 37: PackedType(1)}
    | {38: PackedType(6), 39: PackedType(3)}
)
"""By their numbers in MIL.proto's DataType."""


@dataclass(frozen=True)
class Packed:
    """`data` (bytes, memory-mapped where large) holds the numbers one after the other, lowest bits first."""

    data: NDArray[np.uint8]
    kind: PackedType
    shape: tuple[int, ...]

    def unpacked(self) -> NDArray[Any]:
        """A copy with a byte for each number: int8 or uint8."""
        bits, count = self.kind.bits, prod(self.shape)
        group = lcm(bits, 8) // 8
        padded = self.data if len(self.data) % group == 0 else np.pad(self.data, (0, -len(self.data) % group))
        words = np.zeros(len(padded) // group, np.uint32)
        for byte in range(group):
            words |= padded[byte::group].astype(np.uint32) << np.uint32(8 * byte)
        numbers = np.empty((len(words), 8 * group // bits), np.uint8)
        for place in range(numbers.shape[1]):
            numbers[:, place] = words >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
        whole = numbers.reshape(-1)[:count].reshape(self.shape)
        if not self.kind.signed:
            return whole
        unused = 8 - bits
        return (whole << np.uint8(unused)).view(np.int8) >> np.int8(unused)
