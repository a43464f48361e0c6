"""Define the element types of tensors: their names, sizes, and type codes in MIL programs and weight files.

Sources: DataType in MIL.proto and BlobDataType in BlobDataType.hpp, both of
https://github.com/apple/coremltools.
"""

import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np


class ElementType(Enum):
    """An element type.

    `label` is its name in messages and in coremltools; `bits` is the stored size of an element. `mil` and
    `blob` are its codes in a program and in a weight file; None if weight files do not have the type.
    """

    BOOL = ("bool", 8, 1, np.bool_)
    STRING = ("string", 0, 2, None)
    FP16 = ("fp16", 16, 10, np.float16, 1)
    FP32 = ("fp32", 32, 11, np.float32, 2)
    FP64 = ("fp64", 64, 12, np.float64)
    BF16 = ("bf16", 16, 13, None, 5)
    INT8 = ("int8", 8, 21, np.int8, 4)
    INT16 = ("int16", 16, 22, np.int16, 6)
    INT32 = ("int32", 32, 23, np.int32, 14)
    INT64 = ("int64", 64, 24, np.int64)
    INT4 = ("int4", 4, 25, np.int8, 8)
    UINT8 = ("uint8", 8, 31, np.uint8, 3)
    UINT16 = ("uint16", 16, 32, np.uint16, 7)
    UINT32 = ("uint32", 32, 33, np.uint32, 15)
    UINT64 = ("uint64", 64, 34, np.uint64)
    UINT4 = ("uint4", 4, 35, np.uint8, 11)
    UINT2 = ("uint2", 2, 36, np.uint8, 10)
    UINT1 = ("uint1", 1, 37, np.uint8, 9)
    UINT6 = ("uint6", 6, 38, np.uint8, 13)
    UINT3 = ("uint3", 3, 39, np.uint8, 12)
    FP8E4M3FN = ("fp8e4m3fn", 8, 40, None, 16)
    FP8E5M2 = ("fp8e5m2", 8, 41, None, 17)

    def __init__(
        self,
        label: str,
        bits: int,
        mil: int,
        scalar: type[np.generic] | None,
        blob: int | None = None,
    ) -> None:
        self.label = label
        self.bits = bits
        self.mil = mil
        self.blob = blob
        self._dtype = None if scalar is None else np.dtype(scalar)

    def __str__(self) -> str:
        return self.label

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type that holds an element; a number of less than a byte takes a whole byte.

        Raises:
            ValueError: numpy has no such type.
        """
        if self._dtype is None:
            raise ValueError(f"numpy has no type for {self}")
        return self._dtype

    @property
    def has_dtype(self) -> bool:
        """Return whether numpy has such a type."""
        return self._dtype is not None

    @property
    def signed(self) -> bool:
        """Return whether the type is an integer in two's complement."""
        return self._dtype is not None and self._dtype.kind == "i"

    @property
    def packed(self) -> bool:
        """Return whether a byte holds several elements."""
        return 0 < self.bits < 8

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the stored bytes of an array of this shape."""
        return -(-math.prod(shape) * self.bits // 8)


MIL_TYPES: Mapping[int, ElementType] = MappingProxyType({each.mil: each for each in ElementType})
PACKED_TYPES = tuple(each for each in ElementType if each.packed)
