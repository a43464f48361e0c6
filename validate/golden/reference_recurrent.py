"""The reference's recurrent mixers, row by row: Mamba 2 and the gated delta net, each as its paper writes it.

A row goes through a convolution over its own sequence's last inputs, changes the sequence's state, and reads
it. There are no chunks, decays of segments or solved systems as in the graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.convert.families.family import Activation
from anespec.convert.source.facts import LayerFacts
from anespec.convert.source.mixer_facts import DeltaFacts, RecurrentFacts, SSDFacts
from anespec.convert.source.recurrent import JOINED_GATES
from anespec.convert.source.recurrent_tensors import (
    DELTA_ALPHA,
    DELTA_BETA,
    DELTA_GATE,
    DELTA_QKV,
    SSM_BIAS,
    SSM_DECAY,
    SSM_DT,
    SSM_KERNEL,
    SSM_OUT,
    SSM_SKIP,
    SSM_XBC,
    SSM_Z,
    part_name,
)
from anespec.gguf.container import GGUFFile
from anespec.validate.golden.reference_parts import (
    Norm,
    Projection,
    RecurrentCache,
    Stretch,
    activated,
    cache_key,
    rms_norm,
    split_rows,
)
from anespec.validate.golden.rounding import Floats, exact, one_operation, rounded_like


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

    norm, decay = read(part_name(facts, "ssm_norm.weight")), vector(SSM_DECAY)
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


def recurrent_rows(
    facts: RecurrentFacts,
    parts: RecurrentParts,
    projections: Mapping[str, Projection],
    taken: Floats,
    stretches: Sequence[Stretch],
) -> Floats:
    """Return a recurrent mixer of the rows [rows, d] of several sequences, each by itself and row by row."""
    mixed, counts = [], [len(stretch.positions) for stretch in stretches]
    for rows, stretch in zip(split_rows(taken, counts), stretches, strict=True):
        if isinstance(facts, SSDFacts):
            mixed.append(mamba2(facts, parts, projections, rows, stretch))
        else:
            mixed.append(delta_net(facts, parts, projections, rows, stretch))
    return np.concatenate(mixed)


def mamba2(
    facts: SSDFacts,
    parts: RecurrentParts,
    projections: Mapping[str, Projection],
    taken: Floats,
    stretch: Stretch,
) -> Floats:
    """Return Mamba 2 of one sequence's rows [rows, d] at consecutive positions; its cache moves on.

    With h the state of a head, of the row's step dt = softplus(.) and the head's decay a < 0:
    h <- e^(dt a) h + B (dt x), y = C h + D x.
    """
    gate, inputs, steps = (projections[role](taken) for role in (SSM_Z, SSM_XBC, SSM_DT))
    steps = exact(_softplus(steps + parts.step_bias))
    rows, cache = [], _cache(facts, stretch)
    for row, position in enumerate(stretch.positions.tolist()):
        mixed = exact(_convolved(parts, inputs[row], position, cache))
        x, b, c = np.split(mixed, [facts.inner, facts.inner + facts.groups * facts.state])
        x = x.reshape(facts.heads, facts.head_dim)
        # Consecutive heads share a group's B and C.
        b, c = (
            np.repeat(part.reshape(facts.groups, -1), facts.heads // facts.groups, axis=0) for part in (b, c)
        )
        step = steps[row][:, None]
        kept = np.exp(step * parts.decay[:, None])[:, :, None] * cache.state
        cache.state = kept + b[:, :, None] * (step * x)[:, None, :]
        read = (c[:, :, None] * cache.state).sum(axis=1)
        rows.append((read + parts.skip[:, None] * x).reshape(-1))
    gated = rounded_like(np.stack(rows), taken) * activated(gate, Activation.SILU)
    if parts.norm is not None:
        groups = gated.reshape(len(gated), facts.groups, -1)
        gated = (rms_norm(groups, parts.epsilon) * parts.norm).reshape(gated.shape)
    return projections[SSM_OUT](np.asanyarray(gated, np.float32))


def delta_net(
    facts: DeltaFacts,
    parts: RecurrentParts,
    projections: Mapping[str, Projection],
    taken: Floats,
    stretch: Stretch,
) -> Floats:
    """Return the gated delta net of one sequence's rows [rows, d] at consecutive positions.

    With S the state of a head, k and q of length 1: S <- e^g S, S <- S + k (beta (v - S k)), o = S q /
    sqrt(key_dim). The output is normed by head and multiplied by silu of the gate.
    """
    gate, inputs = (projections[role](taken) for role in (DELTA_GATE, DELTA_QKV))
    times = facts.heads // facts.key_heads
    if facts.joins_gates:
        # Key head by key head: the betas of its value heads, then their steps.
        both = projections[JOINED_GATES](taken).reshape(len(taken), facts.key_heads, 2, times)
        beta, alpha = (both[:, :, part].reshape(len(taken), -1) for part in range(2))
    else:
        alpha, beta = (projections[role](taken) for role in (DELTA_ALPHA, DELTA_BETA))
    decays = exact(_softplus(alpha + parts.step_bias) * parts.decay)
    betas = exact(np.asanyarray(1 / (1 + np.exp(-beta)), np.float32))
    width = facts.key_heads * facts.key_dim
    rows, cache = [], _cache(facts, stretch)
    for row, position in enumerate(stretch.positions.tolist()):
        mixed = exact(_convolved(parts, inputs[row], position, cache))
        q, k, v = np.split(mixed, [width, 2 * width])
        q, k = (_unit(part.reshape(facts.key_heads, -1), parts.epsilon) for part in (q, k))
        # Value head j has the key head j mod key_heads, or, if grouped, j div their number by key head.
        q, k = (np.tile(part, (times, 1)) if facts.tiled else part.repeat(times, axis=0) for part in (q, k))
        v = v.reshape(facts.heads, -1)
        cache.state = cache.state * np.exp(decays[row])[:, None, None]
        change = betas[row][:, None] * (v - np.einsum("hkv,hk->hv", cache.state, k))
        cache.state = cache.state + k[:, :, None] * change[:, None, :]
        rows.append(np.einsum("hkv,hk->hv", cache.state, q) / np.sqrt(facts.key_dim))
    read = rounded_like(np.stack(rows).astype(np.float32), taken)
    normed = Norm(parts.epsilon, parts.norm)(read)
    gated = normed.reshape(len(rows), -1) * activated(gate, Activation.SILU)
    return projections[SSM_OUT](np.asanyarray(gated, np.float32))


def _cache(facts: RecurrentFacts, stretch: Stretch) -> RecurrentCache:
    cache = stretch.caches[cache_key(facts)]
    assert isinstance(cache, RecurrentCache)
    return cache


def _convolved(parts: RecurrentParts, inputs: Floats, position: int, cache: RecurrentCache) -> Floats:
    """Return silu of the causal convolution at a position; positions before the text count as zeros."""
    cache.inputs[position] = inputs
    taps = parts.kernel.shape[1]
    mixed = np.zeros_like(inputs)
    for back in range(taps):
        if (earlier := cache.inputs.get(position - back)) is not None:
            mixed = mixed + earlier * parts.kernel[:, taps - 1 - back]
    return activated(mixed + parts.kernel_bias, Activation.SILU)


@one_operation
def _unit(x: Floats, epsilon: float) -> Floats:
    """Return rows divided by their lengths, as llama.cpp: no length counts as less than epsilon."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + np.float32(epsilon))
    return np.asanyarray(x / length, np.float32)


@one_operation
def _softplus(x: Floats) -> Floats:
    return np.asanyarray(np.logaddexp(x, np.float32(0)), np.float32)
