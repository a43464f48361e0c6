"""Check that a manifest is consistent: its shards, pools, ropes, layers and vocabulary.

No file is opened here. Whether a shard's program agrees with the manifest is checked when it is loaded
(`load_declared` in runtime.backends.portable.backend).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from anespec.manifests.channel_layout import channel_shape, channels_of
from anespec.manifests.schema import (
    BASE_ALIGNMENT,
    EMBEDDED,
    HIDDEN_IN,
    HIDDEN_OUT,
    LARGEST_FACTOR,
    MOST_SLOTS,
    Fold,
    HeadShard,
    KVCacheGroup,
    KVForm,
    LayerShard,
    Manifest,
    RopeTable,
    Shapes,
    Shard,
    StateKind,
    StateSpec,
    StoredTensor,
    TensorSpec,
    padded,
)
from anespec.system.formatting import counted, listed, quoted, shape_text

Shape = tuple[int | None, ...]

PARTS_OF_KIND: Mapping[StateKind, int] = MappingProxyType(
    {"kv": 2, "latent": 1, "conv": 1, "ssd": 3, "delta": 3, "carried": 1}
)
"""The states' entries by kind that a layer has, such as keys and values."""

READ_BY: Mapping[StateKind, str] = MappingProxyType(
    {
        "kv": "mask",
        "latent": "mask",
        "conv": "taps",
        "ssd": "chunk",
        "delta": "chunk",
        "carried": "chunk",
    }
)
"""How the pools of each kind of state are read."""

ONE_HEAD: tuple[StateKind, ...] = ("latent", "conv")
"""The kinds of states of one head."""

_NUMBERS = ("none", "one", "two", "three")


def contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield a clause for each contradiction in the manifest."""
    yield from _sizes(manifest)
    yield from _chunk(manifest)
    yield from _functions(manifest)
    for pool in manifest.pools:
        yield from _pool(manifest, pool)
    for table in manifest.ropes:
        yield from _rope(manifest, table)
    yield from _coverage(manifest)
    yield from _names(manifest)
    given = {spec.name: spec for spec in _pass_inputs(manifest)}
    pools = {pool.name: pool for pool in manifest.pools}
    for shard in manifest.layer_shards:
        yield from _layer_shard(manifest, shard, given, pools)
    yield from _kv_form(manifest)
    yield from _hyperparameters(manifest)
    yield from _untaken(manifest)
    for head in manifest.head_shards:
        yield from _head_shard(manifest, head)
    if not manifest.ropes and (permuted := [t for t in manifest.tensors if t.rope_permuted]):
        yield f"the rows of {quoted(permuted[0].tensor)} are permuted for a rope, but there is none"
    for tensor in manifest.tensors:
        yield from _rope_rows(manifest, tensor)
    yield from _hidden_scale(manifest)
    yield from _solve(manifest)


def _rope_rows(manifest: Manifest, tensor: StoredTensor) -> Iterator[str]:
    """Check that a tensor consists of heads, each of which has the rows that rotate."""
    if (rows := tensor.rope_rows) is None or not manifest.ropes:
        return
    pairs = len(manifest.ropes[0].frequencies)
    if tensor.rows % rows.head or rows.first + 2 * pairs > rows.head:
        yield (
            f"{2 * pairs} rows from {rows.first} on rotate in heads of {rows.head}, of which the "
            f"{tensor.rows} rows of {quoted(tensor.tensor)} cannot consist"
        )


def _pass_inputs(manifest: Manifest) -> Iterator[TensorSpec]:
    """Yield every input of layer shards that the runtime computes in a pass."""
    hidden, per_layer = _hidden(manifest), manifest.tokens.per_layer
    yield TensorSpec(name=HIDDEN_IN, shape=hidden)
    if per_layer is not None:
        yield TensorSpec(name=EMBEDDED, shape=hidden)
        for shard in manifest.layer_shards:
            if shard.per_layer_input is not None:
                width = (shard.end_layer - shard.first_layer) * per_layer.width
                yield TensorSpec(name=shard.per_layer_input, shape=channel_shape(width))
    for table in manifest.ropes:
        for name in (table.cos_input, table.sin_input):
            yield TensorSpec(name=name, shape=(None, len(table.frequencies)))
    for pool in manifest.pools:
        yield pool.mask_spec
        if pool.live_spec is not None:
            yield pool.live_spec
        yield pool.write_spec(manifest.kv_form)


def _hidden(manifest: Manifest) -> Shape:
    return channel_shape(manifest.hyperparameters.d)


def _sizes(manifest: Manifest) -> Iterator[str]:
    if not manifest.t_min <= manifest.block <= manifest.t_max:
        yield f"block {manifest.block} is outside {manifest.t_min}..{manifest.t_max}"
    if manifest.block > manifest.context:
        yield f"block {manifest.block} is more than the context of {manifest.context} slots"
    if (manifest.context + manifest.spare_slots) * manifest.sequences > MOST_SLOTS:
        yield (
            f"{manifest.sequences} sequences of {manifest.context} slots exceed the {MOST_SLOTS} slots that "
            "a state can have"
        )


def _chunk(manifest: Manifest) -> Iterator[str]:
    """Check that there is one pool of chunks if the manifest has a chunk."""
    pools = [pool for pool in manifest.pools if pool.reads == "chunk"]
    if len(pools) != (manifest.chunk is not None):
        yield f"there are {counted(len(pools), 'pool')} of chunks, but the chunk is {manifest.chunk}"
    for pool in pools:
        if pool.region_slots != manifest.chunk:
            slots = pool.region_slots
            yield f"pool {pool.name} has regions of {slots} slots, not the chunk's {manifest.chunk}"


def _solve(manifest: Manifest) -> Iterator[str]:
    """Check that chunks are solved if there are gated delta nets."""
    has_delta_nets = any(fold.kind == "delta" for shard in manifest.layer_shards for fold in shard.folds)
    if has_delta_nets != (manifest.chunk_solve is not None):
        there = "has" if has_delta_nets else "has no"
        yield f"the model {there} gated delta nets, but chunk_solve is {manifest.chunk_solve}"


def _hidden_scale(manifest: Manifest) -> Iterator[str]:
    """Check that the factor of hidden states is a power of two of at most 1."""
    scale = manifest.hidden_scale
    if scale > 1 or math.frexp(scale)[0] != 0.5:
        yield f"hidden_scale is {scale:g}, which is no power of two of at most 1"


def _functions(manifest: Manifest) -> Iterator[str]:
    """Check that the functions fit the manifest's kind of shapes, its block, t_min and t_max."""
    functions, kind = manifest.functions, manifest.shapes
    if (twice := _repeated([function.name for function in functions])) is not None:
        yield f"two functions are called {quoted(twice)}"
    rows = [function.rows for function in functions if function.rows is not None]
    if len(rows) != (0 if kind is Shapes.RANGE else len(functions)):
        says = "one number of rows" if kind is Shapes.RANGE else "any number of rows"
        yield f"a function takes {says}, but shapes are {kind}"
        return
    if kind is not Shapes.FUNCTIONS and len(functions) > 1:
        yield f"there are {len(functions)} functions, but shapes are {kind}"
    if kind is Shapes.FUNCTIONS and len(functions) == 1:
        yield f"there is one function, but shapes are {kind}"
    yield from _head_functions(manifest)
    if kind is Shapes.RANGE:
        if manifest.t_min == manifest.t_max:
            yield f"passes always have {manifest.t_max} rows, but shapes are {kind}"
        return
    if len(set(rows)) < len(rows):
        yield "two functions take the same number of rows"
    if rows[0] != manifest.block:
        yield f"the first function takes {rows[0]} rows, not the block's {manifest.block}"
    if (min(rows), max(rows)) != (manifest.t_min, manifest.t_max):
        yield (
            f"the functions take {min(rows)} to {max(rows)} rows, not {manifest.t_min} to {manifest.t_max}"
        )


def _head_functions(manifest: Manifest) -> Iterator[str]:
    """Check that heads' own functions run the block first, and only widths that layers run."""
    heads = manifest.head_functions
    if heads is None:
        return
    rows = [function.rows for function in heads]
    if manifest.shapes is not Shapes.FUNCTIONS:
        yield f"heads have functions of their own, but shapes are {manifest.shapes}"
    elif rows[0] != manifest.block:
        yield f"the first function of heads takes {rows[0]} rows, not the block's {manifest.block}"
    elif len(set(rows)) < len(rows) or not {*rows} <= {function.rows for function in manifest.functions}:
        yield f"the functions of heads take {listed([str(each) for each in rows])} rows, but layers others"
    if (twice := _repeated([function.name for function in heads])) is not None:
        yield f"two functions of heads are called {quoted(twice)}"


def _pool(manifest: Manifest, pool: KVCacheGroup) -> Iterator[str]:
    if pool.reads == "taps" and pool.window is None:
        yield f"pool {pool.name} is read by taps, but has no number of them"
    if pool.slots != manifest.sequences * pool.region_slots:
        yield f"pool {pool.name} has {pool.slots} slots, not sequences x region"
    if (pool.reads == "chunk") != (pool.live_input is not None):
        yield f"pool {pool.name} is read by {pool.reads}, but its input of live slots is {pool.live_input}"
    if pool.reads == "chunk":
        if pool.window is not None:
            yield f"pool {pool.name} is read by chunk, but has a window of {pool.window}"
        return
    spare = manifest.spare_slots
    beside = f" and {spare} spare ones" if spare else ""
    if pool.window is None and pool.region_slots != manifest.context + spare:
        yield f"pool {pool.name} has regions of {pool.region_slots} slots, not the context{beside}"
    if pool.window is not None:
        # A pass writes all its rows before it reads any, and must not overwrite the first row's window. In
        # the form AT_POSITION pads write too, in a pass of any width.
        rows = manifest.t_max if manifest.kv_form is KVForm.AT_POSITION else manifest.block
        needed = min(manifest.context, pool.window + rows - 1)
        if not needed <= pool.region_slots - spare <= manifest.context:
            yield (
                f"pool {pool.name} has regions of {pool.region_slots} slots, not {needed} to "
                f"{manifest.context}{beside}"
            )
    if manifest.sequences > 1 and pool.region_slots % BASE_ALIGNMENT:
        yield f"pool {pool.name} has regions of {pool.region_slots} slots, not a multiple of {BASE_ALIGNMENT}"


def _rope(manifest: Manifest, table: RopeTable) -> Iterator[str]:
    """Check that fp16 holds a rope's factors; these are monotonic, so the first and last are checked."""
    last = 1 + table.temperature * math.log1p((manifest.context - 1) // table.temperature_step)
    largest = abs(table.magnitude) * max(1.0, abs(last))
    if largest > LARGEST_FACTOR:
        yield f"the rope {quoted(table.cos_input)} has factors up to {largest:.3g}, which fp16 cannot hold"


def _coverage(manifest: Manifest) -> Iterator[str]:
    layers = [(s.first_layer, s.end_layer) for s in manifest.layer_shards]
    if not tiles(layers, manifest.hyperparameters.layers):
        yield f"the layer shards {layers} do not cover the layers once, in order"
    tokens = [(s.first_token, s.end_token) for s in manifest.head_shards]
    if not tiles(tokens, manifest.hyperparameters.vocabulary):
        yield f"the head shards {tokens} do not cover the vocabulary once, in order"


def _kv_form(manifest: Manifest) -> Iterator[str]:
    """Check the states against the K/V form: who holds them, which layers share one, and two per layer."""
    form = manifest.kv_form
    held = "host" if form is KVForm.OUTSIDE else "graph"
    for shard in manifest.layer_shards:
        for state in shard.states:
            if state.held != held:
                yield f"the {state.held} holds the state {quoted(state.name)}, but K/V are {form}"
            each = PARTS_OF_KIND[state.kind]
            pairs = each == 1 or state.layers[::2] == state.layers[1::2]
            packs = form is KVForm.PACKED and READ_BY[state.kind] != "chunk"
            if not (pairs if packs else len(state.layers) == 1):
                yield f"the state {quoted(state.name)} has layers {state.layers}, but K/V are {form}"
        counts = Counter((layer, state.kind) for state in shard.states for layer in state.layers)
        for (layer, kind), count in counts.items():
            if count != (right := PARTS_OF_KIND[kind]):
                what = "K or V state" if kind == "kv" else f"{kind} state"
                yield f"layer {layer} of {shard.path} has {counted(count, what)}, not {_NUMBERS[right]}"


def tiles(edges: Sequence[tuple[int, int]], end: int) -> bool:
    """Return whether ranges, as pairs of start and end, cover 0..end-1 once and in order."""
    bounds = [(0, 0), *edges, (end, end)]
    return all(a[1] == b[0] for a, b in pairwise(bounds)) and all(a < b for a, b in edges)


def _names(manifest: Manifest) -> Iterator[str]:
    """Check that names are unique, and that outputs are fp16."""
    states = [state.name for shard in manifest.layer_shards for state in shard.states]
    kinds: dict[str, Iterable[str]] = {
        "pools are": [pool.name for pool in manifest.pools],
        "pass inputs are": [spec.name for spec in _pass_inputs(manifest)],
        "states are": states,
        "inputs and states are": [*(spec.name for spec in _pass_inputs(manifest)), *states],
        "files are": [*(shard.path for shard in manifest.shards), manifest.tokens.path],
    }
    for kind, names in kinds.items():
        if (twice := _repeated(names)) is not None:
            yield f"two {kind} called {quoted(twice)}"
    for shard in manifest.shards:
        for spec in shard.outputs:
            if spec.dtype != "fp16":
                yield f"the output {quoted(spec.name)} of {shard.path} is {spec.dtype}, not fp16"
        for kind, names in {
            "inputs": [spec.name for spec in shard.inputs],
            "projections": [tensor.projection for tensor in shard.tensors],
        }.items():
            if (twice := _repeated(names)) is not None:
                yield f"{shard.path} has two {kind} called {quoted(twice)}"


def _repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs twice; None if all are unique."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _layer_shard(
    manifest: Manifest, shard: LayerShard, given: Mapping[str, TensorSpec], pools: Mapping[str, KVCacheGroup]
) -> Iterator[str]:
    yield from _inputs(shard, given)
    yield from _output(shard, HIDDEN_OUT, _hidden(manifest))
    if shard.per_layer_input is not None and manifest.tokens.per_layer is None:
        yield f"{shard.path} takes its layers' embeddings, but there are none"
    if shard.per_layer_input not in (None, *(spec.name for spec in shard.inputs)):
        yield f"{shard.path} has no input {quoted(shard.per_layer_input or '')} for its layers' embeddings"
    for state in shard.states:
        yield from _state(shard, state, pools.get(state.pool))
    yield from _folds(shard)
    yield from _layers_held(shard)
    widest = max((state.shape[-1] for state in shard.states), default=0)
    taken = {spec.name for spec in shard.inputs}
    for table in manifest.ropes:
        if table.cos_input in taken and 2 * len(table.frequencies) > widest:
            yield (
                f"the rope {quoted(table.cos_input)} rotates {2 * len(table.frequencies)} dimensions of "
                f"{shard.path}, whose heads have {widest}"
            )


def _inputs(shard: Shard, given: Mapping[str, TensorSpec]) -> Iterator[str]:
    for spec in shard.inputs:
        if (known := given.get(spec.name)) is None:
            yield f"the runtime has no input {quoted(spec.name)} for {shard.path}"
        elif spec.shape != known.shape:
            yield (
                f"the input {quoted(spec.name)} of {shard.path} has shape {shape_text(spec.shape)}, but "
                f"{shape_text(known.shape)} is given"
            )
        elif spec.dtype != known.dtype:
            yield f"the input {quoted(spec.name)} of {shard.path} is {spec.dtype}, but {known.dtype} is given"
    if HIDDEN_IN not in {spec.name for spec in shard.inputs}:
        yield f"{shard.path} has no input {HIDDEN_IN!r}"


def _output(shard: Shard, name: str, shape: Shape) -> Iterator[str]:
    """Check that a shard has exactly this output."""
    if len(shard.outputs) != 1:
        yield f"{shard.path} has {len(shard.outputs)} outputs, not one"
    for spec in shard.outputs:
        if spec.name != name:
            yield f"the output of {shard.path} is {quoted(spec.name)}, not {name!r}"
        if spec.shape != shape:
            yield f"the output of {shard.path} has shape {shape_text(spec.shape)}, not {shape_text(shape)}"


def _state(shard: LayerShard, state: StateSpec, pool: KVCacheGroup | None) -> Iterator[str]:
    what = f"the state {quoted(state.name)} of {shard.path}"
    entries = len(state.layers)
    if pool is None:
        yield f"{what} is in the pool {quoted(state.pool)}, which does not exist"
    elif state.shape[::2] != (entries, slots := _slots_of(state, pool)):
        yield f"{what} has shape {shape_text(state.shape)}, not [{entries}, KV heads, {slots}, dimensions]"
    elif READ_BY[state.kind] != pool.reads or (state.kind in ONE_HEAD and state.shape[1] != 1):
        yield f"{what} is of the kind {state.kind}, but the pool {quoted(pool.name)} is read by {pool.reads}"
    for layer in state.layers:
        if not shard.first_layer <= layer < shard.end_layer:
            yield f"{what} belongs to layer {layer}, which the shard does not have"


def _slots_of(state: StateSpec, pool: KVCacheGroup) -> int:
    """Return the slots that a state must have: those of its pool, or one for each region."""
    return pool.slots // pool.region_slots if state.kind == "carried" else pool.slots


def _folds(shard: LayerShard) -> Iterator[str]:
    """Check that every recurrent layer has one fold, which names the layer's states."""
    kept = {(layer, state.kind) for state in shard.states for layer in state.layers}
    recurrent = {(layer, kind) for layer, kind in kept if kind in ("ssd", "delta")}
    folded = Counter[tuple[int, StateKind]]((fold.layer, fold.kind) for fold in shard.folds)
    for layer, kind in sorted(recurrent | {*folded}):
        found, right = folded[layer, kind], int((layer, kind) in recurrent)
        if found != right:
            yield (
                f"layer {layer} of {shard.path} has {counted(found, 'fold')} of the kind {kind}, "
                f"not {_NUMBERS[right]}"
            )
    states = {state.name: state for state in shard.states}
    for fold in shard.folds:
        yield from _fold(shard, fold, states)


def _fold(shard: LayerShard, fold: Fold, states: Mapping[str, StateSpec]) -> Iterator[str]:
    kinds: tuple[StateKind, ...] = (fold.kind,) * 3
    for name, kind in zip((*fold.rows, fold.carried), (*kinds, "carried"), strict=True):
        state = states.get(name)
        if state is None or state.kind != kind or state.layers != (fold.layer,):
            yield (
                f"the fold of layer {fold.layer} of {shard.path} names {quoted(name)}, which is no {kind} "
                "state of the layer"
            )
            return
    first, second, decays = (states[name].shape for name in fold.rows)
    heads, size = second[1], first[3] * second[3]
    gates = padded(heads if fold.kind == "ssd" else 2 * heads)
    if heads % first[1] or (fold.kind == "delta" and heads != first[1]) or decays[1::2] != (1, gates):
        yield f"the rows of layer {fold.layer} of {shard.path} do not fit each other, so no fold takes them"
    elif (found := states[fold.carried].shape[1::2]) != (heads, size):
        yield (
            f"the state {quoted(fold.carried)} of {shard.path} has {found[0]} heads of {found[1]}, but the "
            f"layer's rows fold to {heads} of {size}"
        )


def _layers_held(shard: LayerShard) -> Iterator[str]:
    """Check the range of layers against the names of the shard's projections, `layer_N_...`."""
    parts = [tensor.projection.split("_") for tensor in shard.tensors]
    held = {part[1] for part in parts if part[0] == "layer" and len(part) > 2}
    claimed = {str(layer) for layer in range(shard.first_layer, shard.end_layer)}
    if held != claimed:
        yield (
            f"{shard.path} claims layers {shard.first_layer} to {shard.end_layer - 1}, but its projections "
            "belong to others"
        )


def _hyperparameters(manifest: Manifest) -> Iterator[str]:
    """Check that a layer has the hyperparameters' KV heads; layers may differ."""
    sizes = manifest.hyperparameters
    states = (state for shard in manifest.layer_shards for state in shard.states)
    if not any(state.shape[1::2] == (sizes.kv_heads, sizes.head_dim) for state in states):
        yield f"no state has the {sizes.kv_heads} KV heads of {sizes.head_dim} of the hyperparameters"


def _untaken(manifest: Manifest) -> Iterator[str]:
    taken = {spec.name for shard in manifest.layer_shards for spec in shard.inputs}
    for spec in _pass_inputs(manifest):
        if spec.name not in taken:
            yield f"no layer shard takes the input {quoted(spec.name)}"


def _head_shard(manifest: Manifest, shard: HeadShard) -> Iterator[str]:
    yield from _inputs(shard, {HIDDEN_IN: TensorSpec(name=HIDDEN_IN, shape=_hidden(manifest))})
    widths = [width for spec in shard.outputs if (width := channels_of(spec.shape)) is not None]
    tokens = shard.end_token - shard.first_token
    if len(widths) != len(shard.outputs) or sum(widths) != tokens:
        shapes = listed([shape_text(spec.shape) for spec in shard.outputs]) or "none"
        yield f"{shard.path} has {tokens} tokens, but its outputs are {shapes}"
