"""A matrix in memory as a source of weights, in any of GGUF's types."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray


@dataclass(frozen=True)
class ArraySource:
    """float32 (out, in), quantised by gguf-py where `kind` asks for it."""

    values: NDArray[np.float32]
    kind: GGMLQuantizationType = GGMLQuantizationType.F32
    name: str = "w"
    rope_rows: None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def block_kind(self) -> GGMLQuantizationType:
        return self.kind

    @property
    def order(self) -> NDArray[np.intp]:
        return np.arange(len(self.values))

    @classmethod
    def of_blocks(cls, raw: NDArray[np.uint8], kind: GGMLQuantizationType) -> "ArraySource":
        """A matrix that is given as the GGUF would store it."""
        source = cls(np.asarray(dequantize(raw, kind), dtype=np.float32), kind)
        source.__dict__["raw"] = raw
        return source

    @cached_property
    def raw(self) -> NDArray[np.uint8]:
        return np.asarray(quantize(self.values, self.kind)).view(np.uint8).reshape(len(self.values), -1)

    def rows(self, wanted: slice) -> NDArray[np.float32]:
        return np.array(dequantize(self.raw[wanted], self.kind), dtype=np.float32)

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        return self.raw[wanted]

    def forget(self) -> None:
        """Nothing to let go."""
