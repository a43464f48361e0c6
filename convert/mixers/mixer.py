"""What all mixers have in common: a mixer is the part of a layer that combines the rows of a sequence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anespec.convert.graph import kv
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.kv import Cell, Cells, Homes, KeptRows
from anespec.convert.graph.projection import Projection
from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.schema import Fold, KVCacheGroup, KVForm, RopeTable

ProjectionOf = Callable[[str], Projection]
"""Returns a layer's projection by its role."""


class MixerPlan(Protocol):
    """The sizes of one mixer of a layer, its pools and its rope tables."""

    @property
    def pools(self) -> Sequence[KVCacheGroup]:
        """The pools in which it keeps rows, or reads those of another layer."""
        ...

    @property
    def ropes(self) -> Sequence[RopeTable]:
        """The rope tables that it reads."""
        ...

    @property
    def kept(self) -> Sequence[KeptRows]:
        """What it keeps of each row; nothing if it reads another layer's."""
        ...

    @property
    def fold(self) -> Fold | None:
        """How its state moves on at the end of a chunk; None if it has none."""
        ...


@dataclass(frozen=True)
class ShardVars:
    """What the mixers of a shard read and write, in one function of its program.

    `by_name` has the inputs, `homes` the slots that a pass's rows write, by pool, and `cells` says where rows
    are kept. `layout` is that of channel tensors. Mixers add `new_rows`, by state: the rows of this pass; and
    `slots`, by layer and kind: all slots after the write, which later layers may read.
    """

    by_name: Mapping[str, Var]
    homes: Mapping[str, Homes]
    cells: Cells
    form: KVForm
    layout: ChannelLayout
    new_rows: dict[str, Var] = field(default_factory=dict)
    slots: dict[tuple[int, str], tuple[Var, ...]] = field(default_factory=dict)

    def write(self, kept: KeptRows, part: int, rows: Var, name: str) -> Var:
        """Write the pass's rows [1, heads, T, width] of a part; return all slots [1, heads, S, width]."""
        cell: Cell = self.cells[kept.layer, kept.kind][part]
        updated = kv.write(cell, rows, self.homes[kept.pool.name], self.form, name)
        self.new_rows[cell.state] = updated.rows
        return updated.slots

    def read(self, kept: KeptRows) -> Var:
        """Return the only part of what is kept, which no pass writes."""
        (cell,) = self.cells[kept.layer, kept.kind]
        return cell.store if self.form is KVForm.OUTSIDE else mb.read_state(input=cell.store)


class Mixer(Protocol):
    """A mixer with its weights."""

    def __call__(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Mix the rows of a channel tensor, of `hidden_size` channels each; return one of the same shape."""
        ...
