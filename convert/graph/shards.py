"""Whole shards: a run of layers, or a slice of the vocabulary, as one MIL program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph import kv
from anespec.convert.graph.attention import (
    AttentionSizes,
    AttentionWeights,
    BlockInputs,
    LayerState,
    attention,
)
from anespec.convert.graph.builder import Function, Program, Var, ct, mb, types
from anespec.convert.graph.mlp import MLPWeights, gated_mlp
from anespec.convert.graph.norm import rms_norm
from anespec.convert.graph.projection import Projection, project
from anespec.manifests.schema import HIDDEN_IN, HIDDEN_OUT, Pool, RopeTable, StateSpec, TensorSpec


@dataclass(frozen=True)
class LayerWeights:
    """Everything one layer needs, already stored."""

    attention_norm: NDArray[np.float16]
    attention: AttentionWeights
    mlp_norm: NDArray[np.float16]
    mlp: MLPWeights


@dataclass(frozen=True)
class LayerPlan:
    """A run of layers that share a pool and a rope table."""

    indices: range
    sizes: AttentionSizes
    epsilon: float
    pool: Pool
    rope: RopeTable

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """K and V of each layer: [1, n_kv, S, head_dim]."""
        shape = (1, self.sizes.kv_heads, self.pool.slots, self.sizes.head_dim)
        return tuple(
            StateSpec(name=f"{part}_{index}", shape=shape, pool=self.pool.name, layer=index)
            for index in self.indices
            for part in ("k", "v")
        )

    def inputs(self, d: int) -> tuple[TensorSpec, ...]:
        """The shard's inputs; None is T."""
        slots, half = self.pool.slots, self.sizes.rotary_dim // 2
        return (
            TensorSpec(name=HIDDEN_IN, shape=(1, d, None, 1)),
            TensorSpec(name=self.rope.cos_input, shape=(None, half)),
            TensorSpec(name=self.rope.sin_input, shape=(None, half)),
            TensorSpec(name=self.pool.mask_input, shape=(1, 1, None, slots)),
            TensorSpec(name=self.pool.write_input, shape=(1, 1, slots, None)),
        )


@dataclass(frozen=True)
class ShardProgram:
    """A program with the Core ML types of its inputs and outputs."""

    program: Program
    inputs: list[ct.TensorType]
    outputs: list[ct.TensorType]


class ProgramScope:
    """Opens a MIL function for a shard: T is one symbol, 1..t_max with the block as its default."""

    def __init__(self, block: int, t_max: int) -> None:
        self.rows = ct.RangeDim(1, t_max, default=block) if t_max > 1 else 1

    def shape(self, spec: TensorSpec) -> tuple[object, ...]:
        """The Core ML shape of an input."""
        return tuple(self.rows if size is None else size for size in spec.shape)

    def placeholder(self, spec: TensorSpec) -> object:
        """The MIL input specification of an input."""
        symbol = getattr(self.rows, "symbol", 1)
        return mb.TensorSpec(tuple(symbol if size is None else size for size in spec.shape), dtype=types.fp16)

    def types(self, specs: tuple[TensorSpec, ...]) -> list[ct.TensorType]:
        """Core ML input types."""
        return [ct.TensorType(spec.name, self.shape(spec), dtype=np.float16) for spec in specs]


def decoder_layer(
    x: Var, weights: LayerWeights, plan: LayerPlan, inputs: BlockInputs, state: LayerState, name: str
) -> Var:
    """x + attention(norm(x)), then + mlp(norm(.)), over [1, d, T, 1]."""
    normed = rms_norm(x, weights.attention_norm, plan.epsilon, f"{name}_attention_norm")
    x = mb.add(
        x=x, y=attention(normed, weights.attention, plan.sizes, inputs, state, name), name=f"{name}_attended"
    )
    normed = rms_norm(x, weights.mlp_norm, plan.epsilon, f"{name}_mlp_norm")
    return mb.add(x=x, y=gated_mlp(normed, weights.mlp, name), name=f"{name}_out")


def layer_shard(plan: LayerPlan, weights: list[LayerWeights], d: int, scope: ProgramScope) -> ShardProgram:
    """The program of consecutive layers; inputs and states as `plan` says, output `hidden`."""
    input_specs, state_specs = plan.inputs(d), plan.states

    def build(by_name: Mapping[str, Var]) -> Var:
        write_mask = by_name[plan.pool.write_input]
        inputs = BlockInputs(
            cos=by_name[plan.rope.cos_input],
            sin=by_name[plan.rope.sin_input],
            attn_mask=by_name[plan.pool.mask_input],
            write_mask=write_mask,
            kept=kv.kept_slots(write_mask),
        )
        x = by_name[HIDDEN_IN]
        for index, layer in zip(plan.indices, weights, strict=True):
            state = LayerState(k=by_name[f"k_{index}"], v=by_name[f"v_{index}"])
            x = decoder_layer(x, layer, plan, inputs, state, f"layer_{index}")
        return mb.identity(x=x, name=HIDDEN_OUT)

    states = {spec.name: mb.StateTensorSpec(spec.shape, dtype=types.fp16) for spec in state_specs}
    program = _program(build, {s.name: scope.placeholder(s) for s in input_specs} | states)
    return ShardProgram(program, scope.types(input_specs), [ct.TensorType(HIDDEN_OUT, dtype=np.float16)])


def head_inputs(d: int) -> tuple[TensorSpec, ...]:
    """A head shard takes the hidden state alone."""
    return (TensorSpec(name=HIDDEN_IN, shape=(1, d, None, 1)),)


def head_shard(
    norm: NDArray[np.float16],
    epsilon: float,
    projection: Projection,
    output: str,
    d: int,
    scope: ProgramScope,
) -> ShardProgram:
    """Final norm and a slice of the output projection: [1, d, T, 1] -> logits [1, V_j, T, 1]."""
    input_specs = head_inputs(d)

    def build(by_name: Mapping[str, Var]) -> Var:
        return project(rms_norm(by_name[HIDDEN_IN], norm, epsilon, "final_norm"), projection, output)

    program = _program(build, {s.name: scope.placeholder(s) for s in input_specs})
    return ShardProgram(program, scope.types(input_specs), [ct.TensorType(output, dtype=np.float16)])


def _program(build: Callable[[Mapping[str, Var]], Var], placeholders: Mapping[str, object]) -> Program:
    """The program whose one function has the placeholders as inputs and what `build` returns as output."""
    with Function(placeholders, ct.target.iOS18) as function:
        function.set_outputs([build(function.inputs)])
    program = Program()
    program.add_function("main", function)
    return program
