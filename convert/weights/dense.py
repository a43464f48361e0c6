"""Weights as plain fp16."""

from dataclasses import dataclass

import numpy as np

from anespec.convert.weights.encoding import Floats, Part, Parts, Piece, without_subnormals
from anespec.manifests.element_types import ElementType
from anespec.manifests.schema import WeightFormat


@dataclass(frozen=True)
class Dense:
    """fp16 (out, in, 1, 1), rounded to nearest; where `subnormals` would be flushed, to one that is none."""

    subnormals: bool = True
    weight_format = WeightFormat.FP16
    operation = None
    lossless = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """The weight itself."""
        return (Part("weight", (*shape, 1, 1), ElementType.FP16),)

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Every row stands alone."""
        return 1

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        into["weight"][:] = piece.values if self.subnormals else without_subnormals(piece.values)
        return into["weight"].astype(np.float32)
