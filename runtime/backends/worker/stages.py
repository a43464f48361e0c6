"""Translate a manifest for a worker: stages, and the parts of the shared memory that they use.

A worker knows no manifest, only paths, names and shapes; these are the message `load`, field by field.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import ChannelLayout, shape_at
from anespec.manifests.schema import (
    HIDDEN_IN,
    BestHead,
    HeadShard,
    LayerShard,
    Manifest,
    Shard,
    StateSpec,
    TensorSpec,
)
from anespec.runtime.backends.pass_inputs import write_first_slots
from anespec.runtime.backends.worker.shared_memory import Shape, SharedMemory, at_width
from anespec.system.errors import ArtifactError
from anespec.system.formatting import quoted

LOGITS = "logits"
SLOTS = "slots"
"""The parts that belong to no tensor of a shard: rows of logits, and K/V on its way in or out."""

TRANSFER_BYTES = 1 << 23
"""Of `slots`, unless a single slot takes more."""


@dataclass(frozen=True)
class Port:
    """An input or output of a stage, and its part of the shared memory; a dimension of None is T."""

    name: str
    shape: tuple[int | None, ...]
    buffer: str
    dtype: Literal["fp16", "int32"] = "fp16"

    def part(self, width: int) -> str:
        """The name of its part of the shared memory in passes over `width` rows."""
        return at_width(self.buffer, width) if None in self.shape else self.buffer


@dataclass(frozen=True)
class StageFunction:
    """One function of a shard, and the widths that are run with it; None where a package names none.

    `layout` is that of its channel tensors; the ports have their shapes as declared.
    """

    name: str | None
    rows: tuple[int, ...]
    layout: ChannelLayout


@dataclass(frozen=True)
class StageState:
    """A K or V state in pool number `pool`."""

    name: str
    shape: Shape
    pool: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        n, heads, _, head_dim = self.shape
        return 2 * n * heads * head_dim


@dataclass(frozen=True)
class StageCache(StageState):
    """A state in shared memory: the shard's input `name`, whose new slots are its output `new`."""

    new: str
    buffer: str


@dataclass(frozen=True)
class Stage:
    """One shard as a worker runs it. `bytes` are those of its weights, about, which its functions share.

    The kind `best` is a head through its functions that find the best tokens; its weights are the head's.
    """

    path: str
    kind: Literal["layers", "head", "best"]
    first_token: int
    functions: tuple[StageFunction, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[StageState, ...]
    caches: tuple[StageCache, ...]
    bytes: int = field(repr=False)

    @property
    def held(self) -> tuple[StageState, ...]:
        """States and caches, in the order that slots are moved."""
        return (*self.states, *self.caches)

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of rows that it runs on, by function."""
        return tuple(width for function in self.functions for width in function.rows)


def stages_of(manifest: Manifest, shards: Sequence[Shard], compiled: Mapping[str, Path]) -> tuple[Stage, ...]:
    """The stages of these shards, in the order that a pass goes through them.

    `compiled` has the compiled shards by the shards' own paths. Hidden states lie in `hidden.0`, what the
    first layer shard takes, to `hidden.N`, what all heads take.
    """
    return tuple(_stage(manifest, shard, str(compiled[shard.path])) for shard in shards)


def _stage(manifest: Manifest, shard: Shard, path: str) -> Stage:
    layers = len(manifest.layer_shards)
    number = [own.path for own in manifest.shards].index(shard.path)
    pools = [pool.name for pool in manifest.pools]
    states = [
        _state(spec, pools.index(spec.pool))
        for spec in (shard.states if isinstance(shard, LayerShard) else ())
    ]
    taken = f"hidden.{min(number, layers)}"
    is_best = isinstance(shard, BestHead)
    return Stage(
        path=path,
        kind="best" if is_best else "head" if isinstance(shard, HeadShard) else "layers",
        first_token=shard.first_token if isinstance(shard, HeadShard) else 0,
        functions=_functions(manifest, shard),
        inputs=tuple(_port(spec, taken if spec.name == HIDDEN_IN else spec.name) for spec in shard.inputs),
        outputs=tuple(
            _port(spec, f"hidden.{number + 1}" if number < layers else f"head.{number - layers}.{spec.name}")
            for spec in shard.outputs
        ),
        states=tuple(state for state in states if not isinstance(state, StageCache)),
        caches=tuple(state for state in states if isinstance(state, StageCache)),
        # A package of several functions was seen to hold its weights once for each (grade B). So a head that
        # also finds the best token counts twice; its stage of the kind `best`, in the same worker, does not.
        bytes=0 if is_best else len(manifest.ways_through(shard)) * shard.bytes,
    )


def _functions(manifest: Manifest, shard: Shard) -> tuple[StageFunction, ...]:
    """Each function with the widths that run with it; a package of one names none."""
    widths = manifest.widths_of(shard)
    return tuple(
        StageFunction(
            manifest.loaded_name(shard, each),
            tuple(width for width in widths if manifest.function_of(shard, width) == each),
            each.layout,
        )
        for each in manifest.functions_of(shard)
    )


def _state(spec: StateSpec, pool: int) -> StageState:
    if spec.held == "graph":
        return StageState(spec.name, spec.shape, pool)
    return StageCache(spec.name, spec.shape, pool, spec.new_rows, f"cache.{spec.name}")


def _port(spec: TensorSpec, buffer: str) -> Port:
    return Port(spec.name, spec.shape, buffer, spec.dtype)


def integer_parts(stages: Iterable[Stage]) -> frozenset[str]:
    """The parts of shared memory that are int32."""
    return frozenset(
        port.part(width)
        for stage in stages
        for port in stage.inputs
        for width in stage.widths
        if port.dtype == "int32"
    )


@contextmanager
def first_pass_inputs(
    shared: SharedMemory, stages: Iterable[Stage], written_by: Collection[str]
) -> Iterator[None]:
    """Have row t of a pass write slot t within the block, as first passes do that no tokens stand for.

    `written_by` are the inputs that say which slots rows write: one-hot, or as integers [T]. Zeros, which an
    arena begins with, are no pass that any backend has to run. Behind the block is what stood there before:
    whoever writes a pass's inputs knows it.
    """
    ports = {
        (port.part(width), port.dtype)
        for stage in stages
        for port in stage.inputs
        for width in stage.widths
        if port.name in written_by
    }
    before: list[tuple[NDArray[np.generic], NDArray[np.generic]]] = []
    for part, dtype in sorted(ports):
        value: NDArray[np.generic] = shared.integers(part) if dtype == "int32" else shared.tensor(part)
        before.append((value, value.copy()))
        write_first_slots(value)
    try:
        yield
    finally:
        for value, old in before:
            value[...] = old


def memory_parts(stages: Iterable[Stage], vocabulary: int) -> dict[str, Shape]:
    """The parts of shared memory for these stages, which all their workers share.

    Raises:
        ArtifactError: two tensors want one part in different shapes.
    """
    shapes: dict[str, tuple[int | None, ...]] = {}
    widths: dict[str, set[int]] = defaultdict(set)
    slot_bytes = 0
    for stage in stages:
        for port in (*stage.inputs, *stage.outputs):
            if shapes.setdefault(port.buffer, port.shape) != port.shape:
                raise ArtifactError(
                    f"the shards disagree about the shape of {quoted(port.buffer)}; convert the model again"
                )
            widths[port.buffer] |= {*stage.widths}
        slot_bytes += sum(state.slot_bytes for state in stage.held)
        for cache in stage.caches:
            shapes[cache.buffer] = cache.shape
    parts: dict[str, Shape] = {}
    for buffer, shape in shapes.items():
        for width in sorted(widths[buffer]) if None in shape else ():
            parts[at_width(buffer, width)] = shape_at(shape, width)
        if None not in shape:
            parts[buffer] = tuple(size or 0 for size in shape)
    return parts | {
        LOGITS: (max(width for each in widths.values() for width in each), vocabulary),
        SLOTS: (max(TRANSFER_BYTES, slot_bytes) // 2,),
    }
