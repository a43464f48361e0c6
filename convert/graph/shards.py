"""Build the MIL program of a whole shard: consecutive layers, or a part of the vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import Activation
from anespec.convert.graph import kv
from anespec.convert.graph.attention import (
    AttentionSizes,
    AttentionWeights,
    LayerInputs,
    Rotation,
    WrittenKV,
    attention,
    logit_softcap,
    write_keys_values,
)
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.functions import OtherBody, ProgramScope, ShardProgram
from anespec.convert.graph.kv import LayerCells, LayerKV
from anespec.convert.graph.mlp import MLPWeights, gated_mlp
from anespec.convert.graph.norm import rms_norm
from anespec.convert.graph.per_layer import (
    PerLayerMix,
    PerLayerWeights,
    add_per_layer,
    mix_per_layer,
)
from anespec.convert.graph.projection import Projection, project
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


Norm = NDArray[np.float16]


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer, in their stored formats. None means that there is no such norm.

    The norms after attention and MLP apply to their outputs, before these are added to the hidden state.
    """

    attention_norm: Norm | None
    attention: AttentionWeights
    after_attention_norm: Norm | None
    mlp_norm: Norm | None
    mlp: MLPWeights
    after_mlp_norm: Norm | None
    per_layer: PerLayerWeights | None = None
    output_scale: float | None = None


@dataclass(frozen=True)
class LayerPlan:
    """The plan of one layer: sizes, pool, rope tables, and the layer whose K/V it attends to."""

    index: int
    sizes: AttentionSizes
    pool: KVCacheGroup
    query_rope: RopeTable | None
    key_rope: RopeTable | None
    kv_layer: int
    activation: Activation
    residual_scale: float

    @property
    def own_kv(self) -> LayerKV | None:
        """The sizes of its own K and V; None if it attends to another layer's."""
        if self.kv_layer != self.index:
            return None
        return LayerKV(self.index, self.sizes.kv_heads, self.sizes.head_dim, self.pool)


@dataclass(frozen=True)
class LayerShardPlan:
    """The plan of consecutive layers in one program.

    The graph's hidden state is the model's times `hidden_scale`.
    """

    layers: tuple[LayerPlan, ...]
    hidden_size: int
    epsilon: float
    kv_form: KVForm
    per_layer_width: int = 0
    hidden_scale: float = 1.0

    @property
    def hidden_epsilon(self) -> float:
        """The epsilon of norms over the hidden state."""
        return self.epsilon * self.hidden_scale**2

    @property
    def pools(self) -> tuple[KVCacheGroup, ...]:
        """The pools of these layers, without duplicates."""
        return tuple({layer.pool.name: layer.pool for layer in self.layers}.values())

    @property
    def ropes(self) -> tuple[RopeTable, ...]:
        """The rope tables of these layers, without duplicates."""
        tables = (table for layer in self.layers for table in (layer.key_rope, layer.query_rope))
        return tuple({table.cos_input: table for table in tables if table is not None}.values())

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The K/V states of the layers that have their own."""
        own = [layer.own_kv for layer in self.layers]
        return kv.state_specs([sizes for sizes in own if sizes is not None], self.kv_form)

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
            specs.append(TensorSpec(name=pool.mask_input, shape=(1, 1, None, pool.slots)))
            specs.append(pool.write_spec(self.kv_form))
        if self.per_layer_input is not None:
            width = len(self.layers) * self.per_layer_width
            specs.append(TensorSpec(name=EMBEDDED, shape=channel_shape(self.hidden_size)))
            specs.append(TensorSpec(name=self.per_layer_input, shape=channel_shape(width)))
        return tuple(specs)


def decoder_layer(
    x: Var,
    weights: LayerWeights,
    plan: LayerPlan,
    shard: LayerShardPlan,
    inputs: LayerInputs,
    cells: LayerCells | None,
    written: Mapping[int, WrittenKV],
    name: str,
) -> tuple[Var, WrittenKV]:
    """Build attention and the MLP, each added to the hidden state.

    `cells` are the locations of this layer's own K and V, `written` has the K and V of earlier layers. Return
    the hidden state, and the K and V to which this layer attended.
    """

    def before(hidden: Var, norm: Norm | None, place: str) -> Var:
        return (
            hidden if norm is None else rms_norm(hidden, norm, shard.hidden_epsilon, f"{name}_{place}_norm")
        )

    def after(branch: Var, norm: Norm | None, place: str) -> Var:
        return branch if norm is None else rms_norm(branch, norm, shard.epsilon, f"{name}_after_{place}_norm")

    def added(value: Var, branch: Var, place: str) -> Var:
        if plan.residual_scale != 1:
            branch = mb.mul(x=branch, y=np.float16(plan.residual_scale))
        return mb.add(x=value, y=branch, name=f"{name}_{place}")

    taken, keys = before(x, weights.attention_norm, "attention"), weights.attention.keys
    if keys is not None and cells is not None:
        attended = write_keys_values(taken, keys, plan.sizes, inputs, cells, shard.kv_form, name)
    else:
        attended = written[plan.kv_layer]
    mixed = attention(taken, weights.attention, plan.sizes, inputs, attended, name)
    x = added(x, after(mixed, weights.after_attention_norm, "attention"), "attended")
    mixed = gated_mlp(before(x, weights.mlp_norm, "mlp"), weights.mlp, plan.activation, name)
    x = added(x, after(mixed, weights.after_mlp_norm, "mlp"), "out")
    return x, attended


def layer_shard(
    plan: LayerShardPlan, weights: list[LayerWeights], scope: ProgramScope, mix: PerLayerMix | None = None
) -> ShardProgram:
    """Build the program of consecutive layers, with the inputs and states of `plan` and the output `hidden`.

    If the host holds the states, they are inputs, and the new rows of each are an output.
    """
    hosted = tuple(spec for spec in plan.states if spec.held == "host")

    def build(by_name: Mapping[str, Var], layout: ChannelLayout) -> tuple[Var, ...]:
        homes = {pool.name: kv.homes_of(by_name[pool.write_input], plan.kv_form) for pool in plan.pools}
        cells, written = kv.layer_cells(plan.states, by_name), dict[int, WrittenKV]()
        own = None
        if mix is not None and plan.per_layer_input is not None:
            own = mix_per_layer(by_name[EMBEDDED], by_name[plan.per_layer_input], mix, plan.epsilon)
        x = by_name[HIDDEN_IN]
        for number, (layer, stored) in enumerate(zip(plan.layers, weights, strict=True)):
            inputs = LayerInputs(
                query_rope=_rotation(layer.query_rope, by_name),
                key_rope=_rotation(layer.key_rope, by_name),
                attn_mask=by_name[layer.pool.mask_input],
                homes=homes[layer.pool.name],
                layout=layout,
            )
            name = f"layer_{layer.index}"
            x, written[layer.index] = decoder_layer(
                x, stored, layer, plan, inputs, cells.get(layer.index), written, name
            )
            if own is not None and stored.per_layer is not None:
                x = add_per_layer(
                    x, own[number], stored.per_layer, layer.activation, plan.epsilon, plan.hidden_scale, name
                )
            if stored.output_scale is not None:
                x = mb.mul(x=x, y=np.float16(stored.output_scale))
        writers = (written[layer.index] for layer in plan.layers if layer.own_kv is not None)
        return x, *((part.rows for both in writers for part in (both.k, both.v)) if hosted else ())

    given = (*plan.inputs, *(TensorSpec(name=spec.name, shape=spec.shape) for spec in hosted))
    outputs = (HIDDEN_OUT, *(spec.new_rows for spec in hosted))
    return scope.program(build, given, outputs, [spec for spec in plan.states if spec not in hosted])


def _rotation(table: RopeTable | None, by_name: Mapping[str, Var]) -> Rotation | None:
    return None if table is None else Rotation(by_name[table.cos_input], by_name[table.sin_input])


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
        normed = rms_norm(by_name[HIDDEN_IN], norm, plan.epsilon, "final_norm")
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
