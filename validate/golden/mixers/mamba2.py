"""The reference's Mamba 2, row by row, as its paper writes it (https://arxiv.org/abs/2405.21060)."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from anespec.convert.families.family import Activation
from anespec.convert.mixers.mamba2.facts import SSM_DT, SSM_XBC, SSM_Z, SSDFacts
from anespec.convert.mixers.recurrent.tensors import SSM_OUT
from anespec.validate.golden.mixers.recurrent import cache_in, convolved, each_by_itself, softplus
from anespec.validate.golden.reference_layers import Layer
from anespec.validate.golden.reference_parts import Stretch, activated, rms_norm
from anespec.validate.golden.rounding import Floats, exact, rounded_like


def mamba2(layer: Layer, facts: SSDFacts, taken: Floats, stretches: Sequence[Stretch]) -> Floats:
    """Return the Mamba 2 of the rows [rows, d] of several sequences, each by itself and row by row."""
    return each_by_itself(partial(_of_one, layer, facts), taken, stretches)


def _of_one(layer: Layer, facts: SSDFacts, taken: Floats, stretch: Stretch) -> Floats:
    """Return Mamba 2 of one sequence's rows [rows, d] at consecutive positions; its cache moves on.

    With h the state of a head, of the row's step dt = softplus(.) and the head's decay a < 0:
    h <- e^(dt a) h + B (dt x), y = C h + D x.
    """
    parts, projections = layer.recurrent, layer.projections
    assert parts is not None
    gate, inputs, steps = (projections[role](taken) for role in (SSM_Z, SSM_XBC, SSM_DT))
    steps = exact(softplus(steps + parts.step_bias))
    rows, cache = [], cache_in(facts, stretch)
    for row, position in enumerate(stretch.positions.tolist()):
        mixed = exact(convolved(parts, inputs[row], position, cache))
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
