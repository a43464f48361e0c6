"""Plan and build what recurrent mixers share: rows in a chunk's slots, and decays between places of it.

A row is made of its sequence's state at the chunk's start and of the chunk's rows up to its own. So a state
that the whole chunk changes once is all that a mixer carries, and a rejected draft leaves nothing to undo.

The decay from behind place j up to place i is e to the sum of the logarithms of the decays behind j up to i.
Each sum is computed by itself, by a product with a constant of zeros and ones. Differences of running sums
would cancel: fp16 cannot subtract 100 from 100.1.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.kv import KeptRows
from anespec.convert.mixers.delta_net.facts import DeltaFacts
from anespec.convert.mixers.mamba2.facts import SSDFacts
from anespec.convert.mixers.mixer import ShardVars
from anespec.manifests.schema import Fold, KVCacheGroup, RopeTable, padded

NEVER = -1e4
"""The logarithm of a decay that counts as zero; exp(-1e4) is exactly 0 in fp16."""

Constant = NDArray[np.float16]

Facts = TypeVar("Facts", SSDFacts, DeltaFacts)


@dataclass(frozen=True)
class RecurrentPlan(ABC, Generic[Facts]):
    """The sizes of a layer's recurrent mixer, the epsilon of its norms, and its pools of taps and chunks."""

    index: int
    sizes: Facts
    epsilon: float
    taps: KVCacheGroup
    chunk: KVCacheGroup

    kind: ClassVar[Literal["ssd", "delta"]]
    """The kind of its rows and of its fold."""

    @property
    @abstractmethod
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The heads and the width of each part of a row that is kept in its chunk."""

    @property
    def pools(self) -> Sequence[KVCacheGroup]:
        """The pools of its convolution's inputs and of its chunk's rows."""
        return self.taps, self.chunk

    @property
    def ropes(self) -> Sequence[RopeTable]:
        """The rope tables that it reads: none."""
        return ()

    @property
    def inputs(self) -> KeptRows:
        """What the convolution keeps."""
        return KeptRows(self.index, "conv", ((1, self.sizes.channels),), self.taps)

    @property
    def rows(self) -> KeptRows:
        """What is kept of a row in its chunk."""
        return KeptRows(self.index, self.kind, self.parts, self.chunk)

    @property
    def state(self) -> KeptRows:
        """What is carried from chunk to chunk."""
        heads = self.sizes.heads
        return KeptRows(self.index, "carried", ((heads, self.sizes.carried // heads),), self.chunk)

    @property
    def kept(self) -> Sequence[KeptRows]:
        """What it keeps: a convolution's inputs, a chunk's rows, and the carried state."""
        return self.inputs, self.rows, self.state

    @property
    def fold(self) -> Fold:
        """How the carried state moves on at the end of a chunk."""
        rows, (carried,) = self.rows.names, self.state.names
        return Fold(layer=self.index, kind=self.kind, rows=rows, carried=carried)


@dataclass(frozen=True)
class Chunk:
    """The chunks of all sequences in one function of a program.

    `places` [1, N, T, C] is one-hot at a row's sequence and its place in the chunk, `live` [1, 1, N C, 1] is
    1 for the slots that the pass may use. Other slots count as zeros, whatever they hold.
    """

    sequences: int
    rows: int
    places: Var
    live: Var

    @classmethod
    def of(cls, pool: KVCacheGroup, shard: ShardVars) -> "Chunk":
        """Return the chunks of a pool."""
        assert pool.live_input is not None
        live = mb.reshape(x=shard.by_name[pool.live_input], shape=(1, 1, pool.slots, 1))
        places = shard.by_name[pool.mask_input]
        return cls(pool.slots // pool.region_slots, pool.region_slots, places, live)

    def write(self, kept: KeptRows, part: int, new: Var, shard: ShardVars, name: str) -> Var:
        """Write rows [1, heads, T, width] of a part; return the live ones, [heads, N, C, width]."""
        heads, width = kept.parts[part]
        slots = mb.mul(x=shard.write(kept, part, new, name), y=self.live)
        return mb.reshape(x=slots, shape=(heads, self.sequences, self.rows, width))

    def write_gates(
        self, kept: KeptRows, part: int, new: Var, counts: list[int], shard: ShardVars, name: str
    ) -> list[Var]:
        """Write rows of numbers by head, [1, 1, T, padded(sum of counts)]; return the live ones.

        The result has [count, N, 1, C] for each of `counts`.
        """
        slots = mb.mul(x=shard.write(kept, part, new, name), y=self.live)
        turned = mb.transpose(x=slots, perm=[0, 3, 1, 2])
        rest = padded(sum(counts)) - sum(counts)
        parts = [turned]
        if rest or len(counts) > 1:
            parts = list(mb.split(x=turned, split_sizes=[*counts, *([rest] if rest else [])], axis=1))
        shapes = ((count, self.sequences, 1, self.rows) for count in counts)
        return [mb.reshape(x=gate, shape=shape) for gate, shape in zip(parts, shapes, strict=False)]

    def own(self, of_sequences: Var) -> Var:
        """Return the sum [heads, 1, T, width] over sequences, of which all but a row's own are zeros."""
        if self.sequences == 1:
            return of_sequences
        return mb.reduce_sum(x=of_sequences, axes=[1], keep_dims=True)

    def row_decays(self, logs: Var) -> tuple[Var, Var]:
        """Return decays up to each row: since the chunk's start, and since behind each place.

        `logs` [heads, N, 1, C] are logarithms. The results are [heads, N, T, 1] and [heads, N, T, C]: zero
        for places after a row's own, and for sequences that are not its own.
        """
        lower = np.tril(np.ones((self.rows, self.rows), np.float16))
        seen = mb.matmul(x=self.places, y=lower)
        others = mb.sub(x=mb.reduce_sum(x=self.places, axes=[3], keep_dims=True), y=np.float16(1))
        never = mb.add(x=mb.matmul(x=self.places, y=_after(self.rows)), y=_times(others, -NEVER))
        sums = mb.matmul(x=mb.mul(x=logs, y=seen), y=_behind(self.rows))
        decays = mb.exp(x=mb.add(x=sums, y=never))
        since, between = mb.split(x=decays, split_sizes=[1, self.rows], axis=3)
        return since, between

    def all_decays(self, logs: Var) -> Var:
        """Return decays up to each place of the chunk, [heads, N, C, 1 + C]: since its start, then as
        `row_decays` since behind each place; `logs` are [heads, N, 1, C]."""
        heads = int(logs.shape[0])
        sums = mb.matmul(x=logs, y=_segments(self.rows))
        sums = mb.reshape(x=sums, shape=(heads, self.sequences, self.rows, 1 + self.rows))
        return mb.exp(x=mb.add(x=sums, y=_after(self.rows)[None, None]))

    def of_rows(self, by_place: Var) -> tuple[Var, Var]:
        """Return the rows' decays out of those of all places, as `row_decays`."""
        decays = mb.matmul(x=self.places, y=by_place)
        since, between = mb.split(x=decays, split_sizes=[1, self.rows], axis=3)
        return since, between


def _times(x: Var, factor: float) -> Var:
    return mb.mul(x=x, y=np.float16(factor))


def _behind(rows: int) -> Constant:
    """Return [C, 1 + C]: whether a place counts for a sum from the start, or from behind another place."""
    behind = np.tril(np.ones((rows, rows), np.float16), -1)
    return np.concatenate([np.ones((rows, 1), np.float16), behind], axis=1)


def _after(rows: int) -> Constant:
    """Return [C, 1 + C]: NEVER where the second place is after the first, else 0."""
    after = np.triu(np.full((rows, rows), NEVER, np.float16), 1)
    return np.concatenate([np.zeros((rows, 1), np.float16), after], axis=1)


def _segments(rows: int) -> Constant:
    """Return [C, C (1 + C)]: whether a place counts for the sum up to place i from behind place j - 1.

    The column is i (1 + C) + j; j = 0 means from the start.
    """
    up_to = np.tril(np.ones((rows, rows), np.float16))
    both = up_to.T[:, :, None] * _behind(rows)[:, None, :]
    return np.ascontiguousarray(both.reshape(rows, -1))


def rows_of_heads(x: Var, heads: int, width: int) -> Var:
    """Split rows [1, 1, T, heads * width] into [1, heads, T, width]."""
    return mb.transpose(x=mb.reshape(x=x, shape=(1, -1, heads, width)), perm=[0, 2, 1, 3])


def softplus(x: Var) -> Var:
    """Return log(1 + exp(x)), elementwise, as max(x, 0) + 2 artanh(e / (2 + e)) with e = exp(-|x|).

    The operation of this name gives 0 above 10.4 on a Neural Engine (coremltools#2687), and the logarithm of
    1 + e would lose a small e in fp16. The argument of artanh is at most 1/3, so four terms of its series are
    exact to 2e-5.
    """
    small = mb.exp(x=mb.mul(x=mb.abs(x=x), y=np.float16(-1)))
    y = mb.real_div(x=small, y=mb.add(x=small, y=np.float16(2)))
    square = mb.mul(x=y, y=y)
    series = mb.add(x=mb.mul(x=square, y=np.float16(1 / 7)), y=np.float16(1 / 5))
    for term in (1 / 3, 1.0):
        series = mb.add(x=mb.mul(x=series, y=square), y=np.float16(term))
    rest = mb.mul(x=mb.mul(x=y, y=series), y=np.float16(2))
    return mb.add(x=mb.maximum(x=x, y=np.float16(0)), y=rest)


def on_diagonal(values: NDArray[np.float32], columns: int, first: int = 0) -> Constant:
    """Return [rows, columns] with the values on the diagonal that begins in the column `first`.

    A product with it scales the rows' numbers and pads them with zeros. It is exact in any arithmetic.
    """
    placed = np.zeros((len(values), columns), np.float16)
    np.fill_diagonal(placed[:, first:], values.astype(np.float16))
    return placed
