"""The reference's gated short convolution."""

from collections.abc import Sequence

import numpy as np

from anespec.convert.mixers.short_conv.facts import CONV_IN, CONV_OUT, ShortConvFacts
from anespec.validate.golden.reference_layers import Layer
from anespec.validate.golden.reference_parts import ConvCache, Stretch, by_sequence, cache_key
from anespec.validate.golden.rounding import Floats


def short_convolution(
    layer: Layer, facts: ShortConvFacts, taken: Floats, stretches: Sequence[Stretch]
) -> Floats:
    """Return the gated convolution of rows [rows, d], each over the inputs of its own sequence."""
    before, after, own = np.split(layer.projections[CONV_IN](taken), 3, axis=-1)
    parts = by_sequence(before * own, stretches)
    mixed = [
        _convolved(stretch, facts, inputs, layer.kernel)
        for inputs, stretch in zip(parts, stretches, strict=True)
    ]
    return layer.projections[CONV_OUT](after * np.concatenate(mixed))


def _convolved(stretch: Stretch, facts: ShortConvFacts, inputs: Floats, kernel: Floats | None) -> Floats:
    """Return the causal convolution of one sequence's inputs [rows, channels], each channel by itself.

    The kernel is [channels, taps]; its last tap is the row's own. Positions without a row count as zeros.
    """
    cache = stretch.caches[cache_key(facts)]
    assert isinstance(cache, ConvCache) and kernel is not None
    mixed = np.zeros_like(inputs)
    for row, position in enumerate(stretch.positions.tolist()):
        cache.inputs[position] = inputs[row]
        for back in range(facts.taps):
            if (earlier := cache.inputs.get(position - back)) is not None:
                mixed[row] += earlier * kernel[:, facts.taps - 1 - back]
    return mixed
