"""Arrays of numbers of less than a byte, left as they are stored."""

from dataclasses import dataclass
from math import lcm, prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.element_types import ElementType


@dataclass(frozen=True)
class Packed:
    """`data` (bytes, memory-mapped where large) holds the numbers one after the other, lowest bits first."""

    data: NDArray[np.uint8]
    element: ElementType
    shape: tuple[int, ...]

    @classmethod
    def of(cls, data: NDArray[np.uint8], element: ElementType, shape: tuple[int, ...]) -> Self:
        """Raises ValueError where the bytes are not as many as such an array has."""
        if len(data) != element.nbytes(shape):
            raise ValueError(f"{len(data)} bytes cannot be {shape} numbers of {element.bits} bits")
        return cls(data, element, shape)

    def unpacked(self) -> NDArray[Any]:
        """A copy with a byte for each number: int8 or uint8."""
        bits, count = self.element.bits, prod(self.shape)
        group = lcm(bits, 8) // 8
        padded = self.data if len(self.data) % group == 0 else np.pad(self.data, (0, -len(self.data) % group))
        words = np.zeros(len(padded) // group, np.uint32)
        for byte in range(group):
            words |= padded[byte::group].astype(np.uint32) << np.uint32(8 * byte)
        numbers = np.empty((len(words), 8 * group // bits), np.uint8)
        for place in range(numbers.shape[1]):
            numbers[:, place] = words >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
        whole = numbers.reshape(-1)[:count].reshape(self.shape)
        if not self.element.signed:
            return whole
        unused = 8 - bits
        return (whole << np.uint8(unused)).view(np.int8) >> np.int8(unused)
