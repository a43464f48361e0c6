"""Write K/V into their slots by a mask blend or a slice update; a scatter would leave the Neural Engine.

The forms (manifests.schema.KVForm) differ in where the slots are kept, what is written back, and what
attention reads. All but AT_POSITION compute the same blend over all slots. AT_POSITION replaces only the
slots of the pass's rows. In all forms attention reads the same numbers, except for the sign of a zero (a
blend adds +0), so all give the same results.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.schema import KVCacheGroup, KVForm, StateSpec


@dataclass(frozen=True)
class LayerKV:
    """The sizes of a layer's own K and V."""

    layer: int
    kv_heads: int
    head_dim: int
    pool: KVCacheGroup


@dataclass(frozen=True)
class Cell:
    """The location of a layer's K or V: index `entry` of a state or an input [n, n_kv, S, head_dim]."""

    store: Var
    entry: int


@dataclass(frozen=True)
class LayerCells:
    """The locations of a layer's K and V."""

    k: Cell
    v: Cell


@dataclass(frozen=True)
class MaskedHomes:
    """The slots of a pass's rows as a mask [1, 1, S, T]; `kept` [1, 1, S, 1] is 1 for all other slots."""

    mask: Var
    kept: Var


@dataclass(frozen=True)
class SideBySideHomes:
    """The consecutive slots of a pass's rows, as bounds int32 [4] of a state's slice; `end` is exclusive."""

    begin: Var
    end: Var


Homes = MaskedHomes | SideBySideHomes


@dataclass(frozen=True)
class UpdatedSlots:
    """K or V of a layer after a write: all `slots` [1, n_kv, S, head_dim], and the pass's `rows`."""

    slots: Var
    rows: Var


def state_specs(layers: Iterable[LayerKV], form: KVForm) -> tuple[StateSpec, ...]:
    """Return the states of a shard whose `layers` have K/V of their own.

    In the packed form, layers of the same pool and size share one state, with K and V of each layer as
    neighbouring entries; the state has its first layer's name.
    """
    if form is KVForm.PACKED:
        groups: dict[tuple[str, int, int], list[LayerKV]] = {}
        for layer in layers:
            groups.setdefault((layer.pool.name, layer.kv_heads, layer.head_dim), []).append(layer)
        return tuple(
            _spec(f"kv_{group[0].layer}", [layer for layer in group for _ in ("k", "v")], form)
            for group in groups.values()
        )
    return tuple(_spec(f"{part}_{layer.layer}", [layer], form) for layer in layers for part in ("k", "v"))


def _spec(name: str, layers: Sequence[LayerKV], form: KVForm) -> StateSpec:
    first = layers[0]
    return StateSpec(
        name=name,
        shape=(len(layers), first.kv_heads, first.pool.slots, first.head_dim),
        pool=first.pool.name,
        layers=tuple(layer.layer for layer in layers),
        held="host" if form is KVForm.OUTSIDE else "graph",
    )


def layer_cells(specs: Iterable[StateSpec], by_name: Mapping[str, Var]) -> Mapping[int, LayerCells]:
    """Return the locations of each layer's K and V in the states of a shard, by layer."""
    cells: dict[int, list[Cell]] = {}
    for spec in specs:
        for entry, layer in enumerate(spec.layers):
            cells.setdefault(layer, []).append(Cell(by_name[spec.name], entry))
    return {layer: LayerCells(*both) for layer, both in cells.items()}


def homes_of(written: Var, form: KVForm) -> Homes:
    """Return the slots that a pass's rows write, from the pool's input (see KVCacheGroup.write_spec)."""
    if form is KVForm.AT_POSITION:
        return _side_by_side(written)
    kept = mb.sub(x=np.float16(1), y=mb.reduce_sum(x=written, axes=[3], keep_dims=True))
    return MaskedHomes(written, kept)


def _side_by_side(slots: Var) -> SideBySideHomes:
    """Return the bounds of the consecutive slots [T], by operations that do not depend on T."""
    first = mb.slice_by_index(x=slots, begin=[0], end=[1])
    last = mb.slice_by_index(x=slots, begin=[-1], end=[0], end_mask=[True])
    none = np.zeros(1, np.int32)
    begin = mb.concat(values=[none, none, first, none], axis=0)
    end = mb.concat(values=[none, none, mb.add(x=last, y=np.ones(1, np.int32)), none], axis=0)
    return SideBySideHomes(begin, end)


def write(cell: Cell, new: Var, homes: Homes, form: KVForm, name: str) -> UpdatedSlots:
    """Write row t of `new` [1, n_kv, T, head_dim] into its slot.

    With a mask, a column of zeros writes no slot; with consecutive slots every row writes one. All values
    must be finite, since 0 * infinity is NaN.
    """
    whole = cell.store if form is KVForm.OUTSIDE else mb.read_state(input=cell.store)
    if isinstance(homes, SideBySideHomes):
        everything = [True, True, False, True]
        masks = {"begin_mask": everything, "end_mask": everything}
        updated = mb.slice_update(x=whole, update=new, begin=homes.begin, end=homes.end, **masks)
        mb.coreml_update_state(state=cell.store, value=updated, name=name)
        return UpdatedSlots(updated, new)
    old = mb.slice_by_index(x=whole, **_bounds(cell.entry)) if form is KVForm.PACKED else whole
    blended = mb.add(x=mb.mul(x=old, y=homes.kept), y=mb.matmul(x=homes.mask, y=new))
    match form:
        case KVForm.REREAD:
            return UpdatedSlots(mb.coreml_update_state(state=cell.store, value=blended, name=name), new)
        case KVForm.BLENDED:
            mb.coreml_update_state(state=cell.store, value=blended, name=name)
        case KVForm.SLICE_UPDATE | KVForm.PACKED:
            updated = mb.slice_update(x=whole, update=blended, **_bounds(cell.entry))
            mb.coreml_update_state(state=cell.store, value=updated, name=name)
        case _:
            pass  # the host writes the new rows, which are outputs
    return UpdatedSlots(blended, new)


def _bounds(entry: int) -> dict[str, list[int] | list[bool]]:
    """Return the bounds of `state[entry : entry + 1]`, in the form to which coremltools converts it."""
    whole = [False, True, True, True]
    return {
        "begin": [entry, 0, 0, 0],
        "end": [entry + 1, 0, 0, 0],
        "stride": [1, 1, 1, 1],
        "begin_mask": whole,
        "end_mask": whole,
        "squeeze_mask": [False] * 4,
    }
