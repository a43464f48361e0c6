"""Write K/V into their slots by a mask blend or a slice update; a scatter would leave the Neural Engine.

The forms (manifests.schema.KVForm) differ in where the slots are kept, what is written back, and what
attention reads. All but AT_POSITION compute the same blend over all slots. AT_POSITION replaces only the
slots of the pass's rows, except in chunks, which are short. In all forms attention reads the same numbers,
except for the sign of a zero (a blend adds +0), so all give the same results.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.schema import KVCacheGroup, KVForm, StateKind, StateSpec


@dataclass(frozen=True)
class KeptRows:
    """What a mixer of a layer keeps of each row, by position: fp16 [heads, width] for each of `parts`.

    The kinds are those of StateSpec. Of the kind carried the mixer keeps one row of a sequence, not by
    position.
    """

    layer: int
    kind: StateKind
    parts: tuple[tuple[int, int], ...]
    pool: KVCacheGroup

    @property
    def slots(self) -> int:
        """The slots of its states."""
        regions = self.pool.slots // self.pool.region_slots
        return regions if self.kind == "carried" else self.pool.slots

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the states of its parts."""
        return tuple(f"{part}_{self.layer}" for part in PARTS[self.kind])


PARTS: Mapping[StateKind, tuple[str, ...]] = MappingProxyType(
    {
        "kv": ("k", "v"),
        "latent": ("latent",),
        "conv": ("conv",),
        "ssd": ("ssd_b", "ssd_x", "ssd_g"),
        "delta": ("delta_k", "delta_b", "delta_g"),
        "carried": ("carried",),
    }
)
"""The parts of each kind, which are the prefixes to the names of their states."""

PACKED_KINDS: tuple[StateKind, ...] = ("kv", "latent", "conv")
"""The kinds of which the packed form keeps several layers in one state; their parts have one size."""


@dataclass(frozen=True)
class Cell:
    """The location of a part that a layer keeps: index `entry` of a state or an input [n, heads, S, width].

    `state` is the name of that state.
    """

    state: str
    store: Var
    entry: int


Cells = Mapping[tuple[int, str], Sequence[Cell]]
"""The locations of the parts that mixers keep, by layer and kind."""


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
    """A part of a layer after a write: all `slots` [1, heads, S, width], and the pass's `rows`."""

    slots: Var
    rows: Var


def state_specs(kept: Iterable[KeptRows], form: KVForm) -> tuple[StateSpec, ...]:
    """Return the states of a shard whose mixers keep these rows.

    In the packed form, layers of the same pool, kind and size share one state, with the parts of each layer
    as neighbouring entries; the state has its first layer's name. Recurrent layers have their own states.
    """
    groups: dict[tuple[object, ...], list[KeptRows]] = {}
    alone: list[KeptRows] = []
    for rows in kept:
        if form is KVForm.PACKED and rows.kind in PACKED_KINDS:
            groups.setdefault((rows.pool.name, rows.kind, rows.parts), []).append(rows)
        else:
            alone.append(rows)
    packed = (
        _spec(f"{group[0].kind}_{group[0].layer}", 0, [rows for rows in group for _ in rows.parts], form)
        for group in groups.values()
    )
    apart = (_spec(name, part, [rows], form) for rows in alone for part, name in enumerate(rows.names))
    return (*packed, *apart)


def _spec(name: str, part: int, kept: Sequence[KeptRows], form: KVForm) -> StateSpec:
    first = kept[0]
    heads, width = first.parts[part]
    return StateSpec(
        kind=first.kind,
        name=name,
        shape=(len(kept), heads, first.slots, width),
        pool=first.pool.name,
        layers=tuple(rows.layer for rows in kept),
        held="host" if form is KVForm.OUTSIDE else "graph",
    )


def cells_of(specs: Iterable[StateSpec], by_name: Mapping[str, Var]) -> Cells:
    """Return the locations of the parts that are kept in the states of a shard."""
    cells: dict[tuple[int, str], list[Cell]] = {}
    for spec in specs:
        for entry, layer in enumerate(spec.layers):
            cells.setdefault((layer, spec.kind), []).append(Cell(spec.name, by_name[spec.name], entry))
    return cells


def homes_of(written: Var, *, takes_positions: bool) -> Homes:
    """Return the slots that a pass's rows write, from the pool's input (see KVCacheGroup.write_spec)."""
    if takes_positions:
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
    """Write row t of `new` [1, heads, T, width] into its slot.

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
    is_one_of_many = form is KVForm.PACKED and int(whole.shape[0]) > 1
    old = mb.slice_by_index(x=whole, **_bounds(cell.entry)) if is_one_of_many else whole
    blended = mb.add(x=mb.mul(x=old, y=homes.kept), y=mb.matmul(x=homes.mask, y=new))
    match form:
        case KVForm.REREAD:
            return UpdatedSlots(mb.coreml_update_state(state=cell.store, value=blended, name=name), new)
        case KVForm.BLENDED | KVForm.AT_POSITION:
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
