"""Build mixtures of experts: a router, and an MLP for each expert whose output is multiplied by a weight.

An expert that a row does not choose has the weight zero and adds exact zeros, so a row's output does not
depend on other rows' experts. Experts are added up in the order of their numbers. Of experts with equal
scores those with lower numbers are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import LayerActivation
from anespec.convert.families.mixture import Gating
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.heads import merge_heads, split_heads
from anespec.convert.graph.mlp import MLPWeights, at_most, middle_of, mlp
from anespec.convert.graph.norm import Norm, channel_norm
from anespec.convert.graph.projection import Projection, project
from anespec.manifests.channel_layout import CHANNELS_AXIS, ChannelLayout, channel_shape

BARRED = 1e4
"""What is taken from a logit so that its share of a softmax is zero."""


@dataclass(frozen=True)
class MixturePlan:
    """How many experts there are, how many a row uses, and how their weights are made (see Mixture).

    With `arithmetic` scores are compared by differences, for hardware without truth values.
    """

    experts: int
    used: int
    gating: Gating
    renormalised: bool
    scale: float = 1.0
    arithmetic: bool = False


@dataclass(frozen=True)
class SharedExpert:
    """An MLP that all rows use; with `gate` its output is multiplied by the sigmoid of that projection."""

    mlp: MLPWeights
    gate: Projection | None


@dataclass(frozen=True)
class WideExperts:
    """All experts: one projection for all gates, one for all ups, expert by expert, and a down for each.

    Without `gates` the experts are plain.
    """

    gates: Projection | None
    ups: Projection
    downs: Sequence[Projection]


@dataclass(frozen=True)
class LatentExperts:
    """The projection that makes what the experts read, and the one that their sum goes through."""

    entering: Projection
    leaving: Projection


@dataclass(frozen=True)
class NormsApart:
    """Norms before router and experts, and on the outputs of the experts and of the shared expert."""

    router: Norm
    experts: Norm
    after_experts: Norm
    after_shared: Norm


@dataclass(frozen=True)
class MixtureInputs:
    """What router, experts and shared expert read: channel tensors, which may be the same."""

    router: Var
    experts: Var
    shared: Var


@dataclass(frozen=True)
class MixtureWeights:
    """The projections of one layer's mixture. The bias (experts,) only counts where experts are chosen.

    `expert_scales` (experts,) are factors of the experts' weights. Without `apart` all parts read one norm.
    """

    plan: MixturePlan
    router: Projection
    experts: Sequence[MLPWeights] | WideExperts
    selection_bias: NDArray[np.float16] | None = None
    shared: SharedExpert | None = None
    expert_scales: NDArray[np.float16] | None = None
    apart: NormsApart | None = None
    latent: LatentExperts | None = None


def mixture(
    given: MixtureInputs,
    weights: MixtureWeights,
    activation: LayerActivation,
    layout: ChannelLayout,
    epsilon: float,
    name: str,
) -> Var:
    """Return the sum of each row's experts of a channel tensor, weighted, and of the shared expert.

    `epsilon` is that of norms on outputs.
    """
    shares, x = expert_weights(given.router, weights, layout, name), given.experts
    if weights.latent is not None:
        x = project(x, weights.latent.entering, f"{name}_experts_in")
    if isinstance(weights.experts, WideExperts):
        total = _wide(x, shares, weights.experts, activation, layout, name)
    else:
        total = _each(x, shares, weights.experts, activation, name)
    if weights.latent is not None:
        total = project(total, weights.latent.leaving, f"{name}_experts_out")
    if weights.apart is not None:
        total = channel_norm(total, weights.apart.after_experts, epsilon, f"{name}_after_experts_norm")
    if weights.shared is None:
        return total
    x = given.shared
    shared = mlp(x, weights.shared.mlp, activation, f"{name}_shared")
    if weights.shared.gate is not None:
        switch = mb.sigmoid(x=project(x, weights.shared.gate, f"{name}_shared_switch"))
        shared = mb.mul(x=shared, y=switch)
    if weights.apart is not None:
        shared = channel_norm(shared, weights.apart.after_shared, epsilon, f"{name}_after_shared_norm")
    return mb.add(x=total, y=shared)


def _each(x: Var, shares: Var, experts: Sequence[MLPWeights], activation: LayerActivation, name: str) -> Var:
    """Multiply each expert's output by its weight, and add them up."""
    parts = mb.split(x=shares, num_splits=len(experts), axis=1)
    weighted = []
    for number, (expert, share) in enumerate(zip(experts, parts, strict=True)):
        own = f"{name}_expert_{number}"
        weighted.append(mb.mul(x=mlp(x, expert, activation, own), y=share, name=f"{own}_weighted"))
    return _sum(weighted)


def _wide(
    x: Var,
    shares: Var,
    experts: WideExperts,
    activation: LayerActivation,
    layout: ChannelLayout,
    name: str,
) -> Var:
    """Multiply the middle of all experts by their weights, and add up the downs of the experts' parts."""
    count = len(experts.downs)
    middle = middle_of(x, experts.gates, experts.ups, activation, f"{name}_experts")
    channels = middle.shape[CHANNELS_AXIS]
    by_expert = mb.reshape(x=middle, shape=(count, channels // count, -1, 1))
    weighted = mb.mul(x=by_expert, y=mb.reshape(x=shares, shape=(count, 1, -1, 1)))
    whole = mb.reshape(x=weighted, shape=channel_shape(channels, -1, layout))
    parts = mb.split(x=whole, num_splits=count, axis=CHANNELS_AXIS)
    return _sum(
        [
            project(part, down, f"{name}_expert_{number}_down")
            for number, (part, down) in enumerate(zip(parts, experts.downs, strict=True))
        ]
    )


def _sum(outputs: Sequence[Var]) -> Var:
    """Add up outputs in their order."""
    total = outputs[0]
    for output in outputs[1:]:
        total = mb.add(x=total, y=output)
    return total


def expert_weights(x: Var, weights: MixtureWeights, layout: ChannelLayout, name: str) -> Var:
    """Return the weights of a channel tensor's experts as a channel tensor; zero for those not chosen."""
    plan = weights.plan
    logits = split_heads(project(x, weights.router, f"{name}_router"), 1, plan.experts)
    scores = _scores(logits, plan.gating)
    ranked = logits if plan.gating is Gating.SOFTMAX and weights.selection_bias is None else scores
    if weights.selection_bias is not None:
        ranked = mb.add(x=scores, y=weights.selection_bias.reshape(1, 1, 1, -1))
    chosen = _among_the_largest(ranked, plan)
    if plan.renormalised and plan.gating is Gating.SOFTMAX:
        # A softmax of the chosen logits is the same as the chosen scores divided by their sum.
        barred = mb.mul(x=mb.sub(x=chosen, y=np.float16(1)), y=np.float16(BARRED))
        found = mb.mul(x=mb.softmax(x=mb.add(x=logits, y=barred), axis=-1), y=chosen)
    else:
        found = mb.mul(x=scores, y=chosen)
        if plan.renormalised:
            found = mb.real_div(x=found, y=mb.reduce_sum(x=found, axes=[-1], keep_dims=True))
    if plan.scale != 1:
        found = mb.mul(x=found, y=np.float16(plan.scale))
    if weights.expert_scales is not None:
        found = mb.mul(x=found, y=weights.expert_scales.reshape(1, 1, 1, -1))
    return merge_heads(found, layout)


def _scores(logits: Var, gating: Gating) -> Var:
    match gating:
        case Gating.SOFTMAX:
            return mb.softmax(x=logits, axis=-1)
        case Gating.SIGMOID:
            return mb.sigmoid(x=logits)


def _among_the_largest(scores: Var, plan: MixturePlan) -> Var:
    """Return 1 for each row's `used` largest scores [1, 1, T, experts], else 0.

    A sort leaves the Neural Engine, so an expert's rank is counted: how many scores are larger, or as large
    and of a lower number. The counts are exact in fp16.
    """
    own = mb.transpose(x=scores, perm=[0, 2, 3, 1])
    others = mb.transpose(x=scores, perm=[0, 2, 1, 3])
    if plan.arithmetic:
        larger = _above(others, own)
        equal = mb.sub(x=mb.sub(x=np.float16(1), y=larger), y=_above(own, others))
    else:
        larger = mb.sub(x=np.float16(1), y=_as_number(mb.less_equal(x=others, y=own)))
        equal = _as_number(mb.equal(x=others, y=own))
    earlier = np.tril(np.ones((plan.experts, plan.experts), np.float16), -1)[None, None]
    ahead = mb.add(x=larger, y=mb.mul(x=equal, y=earlier))
    rank = mb.reduce_sum(x=ahead, axes=[3], keep_dims=True)
    if plan.arithmetic:
        chosen = _between_0_and_1(mb.sub(x=np.float16(plan.used), y=rank))
    else:
        chosen = _as_number(mb.less_equal(x=rank, y=np.float16(plan.used - 1)))
    return mb.transpose(x=chosen, perm=[0, 3, 1, 2])


def _above(a: Var, b: Var) -> Var:
    """Return 1 where a > b, else 0; differences of fp16 numbers are multiples of 2^-24."""
    near = _between_0_and_1(mb.mul(x=mb.sub(x=a, y=b), y=np.float16(2**14)))
    return _between_0_and_1(mb.mul(x=near, y=np.float16(2**11)))


def _between_0_and_1(x: Var) -> Var:
    return at_most(mb.maximum(x=x, y=np.float16(0)), 1.0)


def _as_number(truth: Var) -> Var:
    return mb.cast(x=truth, dtype="fp16")
