"""Weights as plain fp16."""

import numpy as np

from anespec.convert.weights.encoding import Floats, Part, Parts, Piece
from anespec.manifests.element_types import ElementType
from anespec.manifests.schema import WeightFormat


class Dense:
    """fp16 (out, in, 1, 1), rounded to nearest."""

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
        into["weight"][:] = piece.values
        return into["weight"].astype(np.float32)
