"""Translate a manifest for a worker: stages, and the parts of the shared memory that they use.

A worker does not read the manifest. The message `load` gives it paths, names and shapes; the classes here
have the fields of that message.
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
from anespec.runtime.backends.pass_inputs import first_slots
from anespec.runtime.backends.worker.shared_memory import Shape, SharedMemory, at_width
from anespec.system.errors import ArtifactError
from anespec.system.formatting import quoted

LOGITS = "logits"
SLOTS = "slots"
"""The two parts that are no tensor of a shard: rows of logits, and the buffer for copies of K/V slots."""

TRANSFER_BYTES = 1 << 23
"""Bytes of the part `slots`; more only if a single slot needs more."""


@dataclass(frozen=True)
class Port:
    """An input or output of a stage, and the name of its part (`buffer`); a dimension of None is T."""

    name: str
    shape: tuple[int | None, ...]
    buffer: str
    dtype: Literal["fp16", "int32"] = "fp16"

    def part(self, width: int) -> str:
        """Return the name of its part of the shared memory in passes over `width` rows."""
        return at_width(self.buffer, width) if None in self.shape else self.buffer


@dataclass(frozen=True)
class StageFunction:
    """A function of a shard, and the widths that it runs; `name` is None if the package names no function.

    `layout` is that of its channel tensors. The stage's ports have the declared shapes nevertheless.
    """

    name: str | None
    rows: tuple[int, ...]
    layout: ChannelLayout


@dataclass(frozen=True)
class StageState:
    """A state in the pool with index `pool`; see `pool_of`."""

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
    """A state in shared memory: the shard's input `name`, whose new slots are its output `new`.

    A carried state has no such output.
    """

    new: str | None
    buffer: str


@dataclass(frozen=True)
class Stage:
    """A shard as a worker runs it. `bytes` is about the size of its weights, which its functions share.

    The kind `best` runs a head shard's functions that find the best tokens; it shares the head's weights.
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
        """States and caches, in the order in which slots are copied."""
        return (*self.states, *self.caches)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths that the stage runs, function by function."""
        return tuple(width for function in self.functions for width in function.rows)


def stages_of(manifest: Manifest, shards: Sequence[Shard], compiled: Mapping[str, Path]) -> tuple[Stage, ...]:
    """Return the stages of these shards, in the order in which a pass runs them.

    `compiled` has the compiled shards by the shards' own paths. The parts `hidden.0`, the input of the first
    layer shard, to `hidden.N`, the input of all heads, hold the hidden states.
    """
    return tuple(_stage(manifest, shard, str(compiled[shard.path])) for shard in shards)


def _stage(manifest: Manifest, shard: Shard, path: str) -> Stage:
    layers = len(manifest.layer_shards)
    number = [own.path for own in manifest.shards].index(shard.path)
    states = [
        _state(spec, pool_of(manifest, spec))
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
        # Others saw a package of several functions hold its weights once for each function (grade B). So a
        # head that also finds the best token counts twice, and its stage of the kind `best`, in the same
        # worker, counts as 0.
        bytes=0 if is_best else len(manifest.ways_through(shard)) * shard.bytes,
    )


def _functions(manifest: Manifest, shard: Shard) -> tuple[StageFunction, ...]:
    """Return each function with its widths; the only function of a package has no name."""
    widths = manifest.widths_of(shard)
    return tuple(
        StageFunction(
            manifest.loaded_name(shard, each),
            tuple(width for width in widths if manifest.function_of(shard, width) == each),
            each.layout,
        )
        for each in manifest.functions_of(shard)
    )


def pool_of(manifest: Manifest, spec: StateSpec) -> int:
    """Return the index of a state's pool.

    Carried states have a slot for each region. They are one pool more, after those of the manifest.
    """
    if spec.kind == "carried":
        return len(manifest.pools)
    return [pool.name for pool in manifest.pools].index(spec.pool)


def _state(spec: StateSpec, pool: int) -> StageState:
    if spec.held == "graph":
        return StageState(spec.name, spec.shape, pool)
    return StageCache(spec.name, spec.shape, pool, spec.new_rows, f"cache.{spec.name}")


def _port(spec: TensorSpec, buffer: str) -> Port:
    return Port(spec.name, spec.shape, buffer, spec.dtype)


def integer_parts(stages: Iterable[Stage]) -> frozenset[str]:
    """Return the names of the parts of shared memory that are int32."""
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
    """Set the inputs of first passes, which run without tokens: within the block, row t writes slot t.

    `written_by` are the inputs for the slots that rows write, one-hot or as integers [T]. Shared memory
    starts as zeros, and a write mask of zeros is no valid pass. After the block the inputs are restored,
    since PassInputs assumes that only its own calls change them.
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
        value[...] = first_slots(value.shape)
    try:
        yield
    finally:
        for value, old in before:
            value[...] = old


def memory_parts(stages: Iterable[Stage], vocabulary: int) -> dict[str, Shape]:
    """Return the shapes of the parts of shared memory that these stages need, by name.

    Raises:
        ArtifactError: two tensors need the same part in different shapes.
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
