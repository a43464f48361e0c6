"""What the reference's recurrent mixers share: their tensors, their convolution, and rows one by one.

A row goes through a convolution over its own sequence's last inputs, changes the sequence's state, and reads
it. There are no chunks, decays of segments or solved systems as in the graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.convert.families.family import Activation
from anespec.convert.mixers.kinds import RecurrentFacts, SSDFacts
from anespec.convert.mixers.mamba2.facts import SSM_SKIP
from anespec.convert.mixers.recurrent.tensors import SSM_BIAS, SSM_DECAY, SSM_KERNEL, SSM_NORM
from anespec.convert.mixers.tensors import part_name
from anespec.convert.source.facts import LayerFacts
from anespec.gguf.container import GGUFFile
from anespec.validate.golden.reference_parts import RecurrentCache, Stretch, activated, by_sequence, cache_key
from anespec.validate.golden.rounding import Floats, one_operation


@dataclass(frozen=True)
class RecurrentParts:
    """A recurrent mixer's tensors that are no projections, with the epsilon of the model's norms.

    `kernel` is [channels, taps], the row's own tap last. `step_bias` and `decay` are by head. Mamba 2 alone
    has `skip`, by head; its `norm` is [groups, channels of a group] or missing.
    """

    kernel: Floats
    kernel_bias: Floats
    step_bias: Floats
    decay: Floats
    skip: Floats
    norm: Floats | None
    epsilon: float


def recurrent_parts(layer: LayerFacts, file: GGUFFile, epsilon: float) -> RecurrentParts | None:
    """Read the tensors of a layer's recurrent mixer; None if it has none."""
    facts = next((mixer for mixer in layer.mixers if isinstance(mixer, RecurrentFacts)), None)
    if facts is None:
        return None

    def read(name: str) -> Floats | None:
        return file.rows(name) if name in file.tensors else None

    def vector(name: str) -> Floats:
        found = read(part_name(facts, name))
        return np.zeros(1, np.float32) if found is None else found.reshape(-1)

    norm, decay = read(part_name(facts, f"{SSM_NORM}.weight")), vector(SSM_DECAY)
    given = read(part_name(facts, SSM_DECAY))
    if isinstance(facts, SSDFacts) and given is not None and given.ndim == 1:
        decay = -np.exp(decay)  # Without a second axis these are the logarithms that the model learned.
    groups = facts.groups if isinstance(facts, SSDFacts) else 1
    return RecurrentParts(
        kernel=vector(f"{SSM_KERNEL}.weight").reshape(-1, facts.taps),
        kernel_bias=vector(f"{SSM_KERNEL}.bias"),
        step_bias=vector(SSM_BIAS),
        decay=decay,
        skip=vector(SSM_SKIP),
        norm=None if norm is None else norm.reshape(groups, -1),
        epsilon=epsilon,
    )


def each_by_itself(
    mix: Callable[[Floats, Stretch], Floats], taken: Floats, stretches: Sequence[Stretch]
) -> Floats:
    """Return what `mix` makes of the rows [rows, d] of each of several sequences."""
    pairs = zip(by_sequence(taken, stretches), stretches, strict=True)
    return np.concatenate([mix(*pair) for pair in pairs])


def cache_in(facts: RecurrentFacts, stretch: Stretch) -> RecurrentCache:
    """Return the cache of a mixer."""
    cache = stretch.caches[cache_key(facts)]
    assert isinstance(cache, RecurrentCache)
    return cache


def convolved(parts: RecurrentParts, inputs: Floats, position: int, cache: RecurrentCache) -> Floats:
    """Return silu of the causal convolution at a position; positions before the text count as zeros."""
    cache.inputs[position] = inputs
    taps = parts.kernel.shape[1]
    mixed = np.zeros_like(inputs)
    for back in range(taps):
        if (earlier := cache.inputs.get(position - back)) is not None:
            mixed = mixed + earlier * parts.kernel[:, taps - 1 - back]
    return activated(mixed + parts.kernel_bias, Activation.SILU)


@one_operation
def softplus(x: Floats) -> Floats:
    """Return log(1 + e^x)."""
    return np.asanyarray(np.logaddexp(x, np.float32(0)), np.float32)
