"""The reference's gated delta net, row by row, as its paper writes it (https://arxiv.org/abs/2412.06464)."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from anespec.convert.families.family import Activation
from anespec.convert.mixers.delta_net.facts import (
    DELTA_ALPHA,
    DELTA_BETA,
    DELTA_GATE,
    DELTA_QKV,
    JOINED_GATES,
    DeltaFacts,
)
from anespec.convert.mixers.recurrent.tensors import SSM_OUT
from anespec.validate.golden.mixers.recurrent import cache_in, convolved, each_by_itself, softplus
from anespec.validate.golden.reference_layers import Layer
from anespec.validate.golden.reference_parts import Norm, Stretch, activated
from anespec.validate.golden.rounding import Floats, exact, one_operation, rounded_like


def delta_net(layer: Layer, facts: DeltaFacts, taken: Floats, stretches: Sequence[Stretch]) -> Floats:
    """Return the gated delta net of rows [rows, d] of several sequences, each by itself and row by row."""
    return each_by_itself(partial(_of_one, layer, facts), taken, stretches)


def _of_one(layer: Layer, facts: DeltaFacts, taken: Floats, stretch: Stretch) -> Floats:
    """Return the gated delta net of one sequence's rows [rows, d] at consecutive positions.

    With S the state of a head, k and q of length 1: S <- e^g S, S <- S + k (beta (v - S k)), o = S q /
    sqrt(key_dim). The output is normed by head and multiplied by silu of the gate.
    """
    parts, projections = layer.recurrent, layer.projections
    assert parts is not None
    gate, inputs = (projections[role](taken) for role in (DELTA_GATE, DELTA_QKV))
    times = facts.heads // facts.key_heads
    if facts.joins_gates:
        # Key head by key head: the betas of its value heads, then their steps.
        both = projections[JOINED_GATES](taken).reshape(len(taken), facts.key_heads, 2, times)
        beta, alpha = (both[:, :, part].reshape(len(taken), -1) for part in range(2))
    else:
        alpha, beta = (projections[role](taken) for role in (DELTA_ALPHA, DELTA_BETA))
    decays = exact(softplus(alpha + parts.step_bias) * parts.decay)
    betas = exact(np.asanyarray(1 / (1 + np.exp(-beta)), np.float32))
    width = facts.key_heads * facts.key_dim
    rows, cache = [], cache_in(facts, stretch)
    for row, position in enumerate(stretch.positions.tolist()):
        mixed = exact(convolved(parts, inputs[row], position, cache))
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


@one_operation
def _unit(x: Floats, epsilon: float) -> Floats:
    """Return rows divided by their lengths, as llama.cpp: no length counts as less than epsilon."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + np.float32(epsilon))
    return np.asanyarray(x / length, np.float32)
