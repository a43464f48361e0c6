"""Build the MIL program of a whole shard: consecutive layers, or a part of the vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import LayerActivation
from anespec.convert.graph import kv
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.experts import MixtureInputs, MixtureWeights, mixture
from anespec.convert.graph.functions import OtherBody, ProgramScope, ShardProgram
from anespec.convert.graph.heads import logit_softcap
from anespec.convert.graph.mlp import MLPWeights, mlp
from anespec.convert.graph.norm import Norm, channel_norm
from anespec.convert.graph.per_layer import (
    PerLayerMix,
    PerLayerWeights,
    add_per_layer,
    mix_per_layer,
)
from anespec.convert.graph.projection import Projection, project
from anespec.convert.mixers.mixer import Mixer, MixerPlan, ShardVars
from anespec.manifests.channel_layout import CHANNELS_AXIS, ChannelLayout, channel_shape, from_rows
from anespec.manifests.schema import (
    BEST,
    BEST_DIGIT,
    BEST_FIRST,
    BEST_PREFIX,
    EMBEDDED,
    HIDDEN_IN,
    HIDDEN_OUT,
    LARGEST_FACTOR,
    Fold,
    HeadOutputs,
    KVCacheGroup,
    KVForm,
    RopeTable,
    StateSpec,
    TensorSpec,
)

# Core ML's reduce_argmax does not define the result of ties, which are frequent among fp16 logits, and
# returns int32. So the lowest of equal tokens is computed in fp16: the largest logit, the smallest first
# digit of the tokens with that logit, and the smallest second digit of those (see schema.BestHead). The
# digits are counted down from a maximum: then the best is a maximum, and a product with 0 excludes other
# tokens.


def best_tokens(slices: Sequence[Var]) -> Var:
    """Return the channels of schema.BestHead for slices of logits; all are channel tensors of one layout."""
    digits = {tokens: _digits(tokens) for tokens in dict.fromkeys(map(_tokens, slices))}
    found = [part for logits in slices for part in _best(logits, *digits[_tokens(logits)])]
    return mb.concat(values=found, axis=CHANNELS_AXIS)


def _tokens(logits: Var) -> int:
    return int(logits.shape[CHANNELS_AXIS])


def _best(logits: Var, first_digits: Var, second_digits: Var) -> tuple[Var, Var, Var, Var]:
    largest = _over_tokens(mb.reduce_max, logits)
    firsts = mb.mul(x=_as_number(mb.equal(x=logits, y=largest)), y=first_digits)
    first = _over_tokens(mb.reduce_max, firsts)
    seconds = mb.mul(x=_as_number(mb.equal(x=firsts, y=first)), y=second_digits)
    second = _over_tokens(mb.reduce_max, seconds)
    # The maximum hides minus infinity, and NaN too if the library ignores NaN in a maximum.
    is_finite = mb.less_equal(x=mb.abs(x=logits), y=np.float16(LARGEST_FACTOR))
    return largest, first, second, _over_tokens(mb.reduce_min, _as_number(is_finite))


def _over_tokens(reduction: Callable[..., Var], x: Var) -> Var:
    return reduction(x=x, axes=[CHANNELS_AXIS], keep_dims=True)


def _as_number(truth: Var) -> Var:
    return mb.cast(x=truth, dtype="fp16")


def _digits(tokens: int) -> tuple[Var, Var]:
    """Return both digits of the numbers of `tokens` tokens, counted down, as channel tensors of one row."""
    first, second = np.divmod(np.arange(tokens), BEST_DIGIT)
    return _constant(BEST_FIRST - first), _constant(BEST_DIGIT - second)


def _constant(numbers: NDArray[np.int64]) -> Var:
    return mb.const(val=np.ascontiguousarray(from_rows(numbers[None].astype(np.float16))))


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer, in their stored formats. None means that there is no such norm.

    The outputs of `mixers`, which read one norm, are added up. The norms after attention and MLP apply to
    their outputs, before these are added to the hidden state. With `parallel` the MLP reads the hidden state
    before attention, by its own norm or by attention's.
    """

    attention_norm: Norm | None
    mixers: tuple[Mixer, ...]
    after_attention_norm: Norm | None
    mlp_norm: Norm | None
    mlp: MLPWeights | MixtureWeights | None
    after_mlp_norm: Norm | None
    per_layer: PerLayerWeights | None = None
    output_scale: float | None = None
    parallel: bool = False


@dataclass(frozen=True)
class LayerPlan:
    """The plan of one layer: its mixers, and how its feed forward's output is computed and added.

    An activation of None means that there is no feed forward.
    """

    index: int
    mixers: tuple[MixerPlan, ...]
    activation: LayerActivation | None
    residual_scale: float


@dataclass(frozen=True)
class LayerShardPlan:
    """The plan of consecutive layers in one program.

    The graph's hidden state is the model's times `hidden_scale`. `branch_epsilon` is the epsilon of the norms
    after attention and MLP.
    """

    layers: tuple[LayerPlan, ...]
    hidden_size: int
    epsilon: float
    branch_epsilon: float
    kv_form: KVForm
    per_layer_width: int = 0
    hidden_scale: float = 1.0

    @property
    def hidden_epsilon(self) -> float:
        """The epsilon of norms over the hidden state."""
        return self.epsilon * self.hidden_scale**2

    @property
    def mixers(self) -> Sequence[MixerPlan]:
        """The mixers of these layers, in order."""
        return [mixer for layer in self.layers for mixer in layer.mixers]

    @property
    def pools(self) -> tuple[KVCacheGroup, ...]:
        """The pools of these layers, without duplicates."""
        return tuple({pool.name: pool for mixer in self.mixers for pool in mixer.pools}.values())

    @property
    def ropes(self) -> tuple[RopeTable, ...]:
        """The rope tables of these layers, without duplicates."""
        tables = (table for mixer in self.mixers for table in mixer.ropes)
        return tuple({table.cos_input: table for table in tables}.values())

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The states of the mixers that keep rows."""
        return kv.state_specs([kept for mixer in self.mixers for kept in mixer.kept], self.kv_form)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """How the recurrent mixers' states move on at the end of a chunk."""
        return tuple(mixer.fold for mixer in self.mixers if mixer.fold is not None)

    @property
    def per_layer_input(self) -> str | None:
        """The name of the input for these layers' own embeddings; None if they have none."""
        first, last = self.layers[0].index, self.layers[-1].index
        return f"per_layer_{first:02d}_{last:02d}" if self.per_layer_width else None

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The shard's inputs except K/V, wherever that is held; a dimension of None is T."""
        specs = [TensorSpec(name=HIDDEN_IN, shape=channel_shape(self.hidden_size))]
        for table in self.ropes:
            shape = (None, len(table.frequencies))
            specs += [TensorSpec(name=name, shape=shape) for name in (table.cos_input, table.sin_input)]
        for pool in self.pools:
            specs.append(pool.mask_spec)
            if pool.live_spec is not None:
                specs.append(pool.live_spec)
            specs.append(pool.write_spec(self.kv_form))
        if self.per_layer_input is not None:
            width = len(self.layers) * self.per_layer_width
            specs.append(TensorSpec(name=EMBEDDED, shape=channel_shape(self.hidden_size)))
            specs.append(TensorSpec(name=self.per_layer_input, shape=channel_shape(width)))
        return tuple(specs)


def decoder_layer(
    x: Var, weights: LayerWeights, plan: LayerPlan, shard: LayerShardPlan, given: ShardVars, name: str
) -> Var:
    """Build the mixers and the MLP, each added to the hidden state; return the hidden state.

    A layer may lack one of the two.
    """

    def before(hidden: Var, norm: Norm | None, place: str) -> Var:
        if norm is None:
            return hidden
        return channel_norm(hidden, norm, shard.hidden_epsilon, f"{name}_{place}_norm")

    def after(branch: Var, norm: Norm | None, place: str) -> Var:
        if norm is None:
            return branch
        return channel_norm(branch, norm, shard.branch_epsilon, f"{name}_after_{place}_norm")

    def added(value: Var, branch: Var, norm: Norm | None, place: str) -> Var:
        # The weights of a norm after the branch include the factor of the hidden state.
        scale = plan.residual_scale * (shard.hidden_scale if norm is None else 1)
        if scale != 1:
            branch = mb.mul(x=branch, y=np.float16(scale))
        return mb.add(x=value, y=branch, name=f"{name}_{place}")

    entered, taken = x, x
    if weights.mixers:
        taken = before(x, weights.attention_norm, "attention")
        mixed = weights.mixers[0](taken, given, name)
        for mixer in weights.mixers[1:]:
            mixed = mb.add(x=mixed, y=mixer(taken, given, name))
        norm = weights.after_attention_norm
        x = added(x, after(mixed, norm, "attention"), norm, "attended")
    if weights.mlp is None or plan.activation is None:
        return x
    if not weights.parallel:
        taken = before(x, weights.mlp_norm, "mlp")
    elif weights.mlp_norm is not None:
        taken = before(entered, weights.mlp_norm, "mlp")
    if isinstance(weights.mlp, MixtureWeights):
        parts, apart = MixtureInputs(taken, taken, taken), weights.mlp.apart
        if apart is not None:
            router, experts = before(x, apart.router, "router"), before(x, apart.experts, "experts")
            parts = MixtureInputs(router, experts, taken)
        epsilon = shard.branch_epsilon
        mixed = mixture(parts, weights.mlp, plan.activation, given.layout, epsilon, name)
    else:
        mixed = mlp(taken, weights.mlp, plan.activation, name)
    norm = weights.after_mlp_norm
    return added(x, after(mixed, norm, "mlp"), norm, "out")


def layer_shard(
    plan: LayerShardPlan, weights: list[LayerWeights], scope: ProgramScope, mix: PerLayerMix | None = None
) -> ShardProgram:
    """Build the program of consecutive layers, with the inputs and states of `plan` and the output `hidden`.

    If the host holds the states, they are inputs, and the new rows of each that passes write are an output.
    """
    hosted = tuple(spec for spec in plan.states if spec.held == "host")
    new_rows = {spec.name: spec.new_rows for spec in hosted if spec.new_rows is not None}

    def build(by_name: Mapping[str, Var], layout: ChannelLayout) -> tuple[Var, ...]:
        homes = {
            pool.name: kv.homes_of(
                by_name[pool.write_input], takes_positions=pool.takes_positions(plan.kv_form)
            )
            for pool in plan.pools
        }
        given = ShardVars(by_name, homes, kv.cells_of(plan.states, by_name), plan.kv_form, layout)
        own = None
        if mix is not None and plan.per_layer_input is not None:
            own = mix_per_layer(by_name[EMBEDDED], by_name[plan.per_layer_input], mix, plan.epsilon)
        x = by_name[HIDDEN_IN]
        for number, (layer, stored) in enumerate(zip(plan.layers, weights, strict=True)):
            name = f"layer_{layer.index}"
            x = decoder_layer(x, stored, layer, plan, given, name)
            if own is not None and stored.per_layer is not None and layer.activation is not None:
                x = add_per_layer(
                    x, own[number], stored.per_layer, layer.activation, plan.epsilon, plan.hidden_scale, name
                )
            if stored.output_scale is not None:
                x = mb.mul(x=x, y=np.float16(stored.output_scale))
        return x, *(given.new_rows[name] for name in new_rows)

    inputs = (*plan.inputs, *(TensorSpec(name=spec.name, shape=spec.shape) for spec in hosted))
    outputs = (HIDDEN_OUT, *new_rows.values())
    return scope.program(build, inputs, outputs, [spec for spec in plan.states if spec not in hosted])


def head_inputs(hidden_size: int) -> tuple[TensorSpec, ...]:
    """Return the only input of a head shard, the hidden state."""
    return (TensorSpec(name=HIDDEN_IN, shape=channel_shape(hidden_size)),)


@dataclass(frozen=True)
class HeadPlan:
    """The plan of the output layer, which all head shards share."""

    hidden_size: int
    epsilon: float
    scale: float
    softcap: float | None
    outputs: HeadOutputs = HeadOutputs.LOGITS


def head_shard(
    plan: HeadPlan, norm: Norm, slices: Mapping[str, Projection], scope: ProgramScope
) -> ShardProgram:
    """Build the final norm and slices of the output projection, which are by the names of their logits.

    If the plan says so, additional functions find the best token of each slice (see schema.BestHead).
    """

    def build(by_name: Mapping[str, Var], layout: ChannelLayout) -> tuple[Var, ...]:
        normed = channel_norm(by_name[HIDDEN_IN], norm, plan.epsilon, "final_norm")
        if plan.scale != 1:
            normed = mb.mul(x=normed, y=np.float16(plan.scale))
        return tuple(_logits(normed, projection, plan.softcap, name) for name, projection in slices.items())

    def build_best(by_name: Mapping[str, Var], layout: ChannelLayout) -> tuple[Var, ...]:
        return (best_tokens(build(by_name, layout)),)

    others = [OtherBody(BEST_PREFIX, build_best, (BEST,))] if plan.outputs is HeadOutputs.ARGMAX else []
    return scope.program(build, head_inputs(plan.hidden_size), tuple(slices), others=others)


def _logits(normed: Var, projection: Projection, softcap: float | None, name: str) -> Var:
    if softcap is None:
        return project(normed, projection, name)
    return logit_softcap(project(normed, projection, f"{name}_uncapped"), softcap)
