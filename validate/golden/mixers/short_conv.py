"""The reference's gated short convolution."""

from collections.abc import Sequence

import numpy as np

from anespec.convert.mixers.short_conv.facts import CONV_IN, CONV_OUT, ShortConvFacts
from anespec.validate.golden.reference_layers import Layer
from anespec.validate.golden.reference_parts import Stretch, convolved, split_rows
from anespec.validate.golden.rounding import Floats


def short_convolution(
    layer: Layer, facts: ShortConvFacts, taken: Floats, stretches: Sequence[Stretch]
) -> Floats:
    """Return the gated convolution of rows [rows, d], each over the inputs of its own sequence."""
    before, after, own = np.split(layer.projections[CONV_IN](taken), 3, axis=-1)
    parts = split_rows(before * own, [len(stretch.positions) for stretch in stretches])
    mixed = [
        convolved(stretch, facts, inputs, layer.kernel)
        for inputs, stretch in zip(parts, stretches, strict=True)
    ]
    return layer.projections[CONV_OUT](after * np.concatenate(mixed))
