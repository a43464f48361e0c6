"""A small hybrid that keeps every promise of Verifier, and subclasses that break one each.

Attention over all positions, a window of four in place of a convolution, and a recurrent layer: Mamba 2 with
one head, computed row by row from the rows in its chunk's slots and the state at the chunk's start.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from numpy_verifier import HEAD_DIM, VOCABULARY, D, NumpyVerifier, Values, rounded

from anespec.manifests.graph_choices import range_widths
from anespec.runtime.kv.folding import fold_ssd
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowSlots, VerifierShape

SIZE = HEAD_DIM * HEAD_DIM
Half = NDArray[np.float16]


def hybrid_shape(
    *,
    chunk: int = 16,
    block: int = 4,
    t_max: int = 8,
    context: int = 128,
    sequences: int = 1,
    partial_spans: bool = False,
) -> VerifierShape:
    """A pool of all positions, a ring for taps and a pool of chunks."""
    pools = (
        KVCacheGroupShape("global", context, None),
        KVCacheGroupShape("taps", 64, 4),
        KVCacheGroupShape("chunk", chunk, None, is_chunk=True),
    )
    return VerifierShape(
        block,
        range_widths(block, 1, t_max),
        context,
        sequences,
        VOCABULARY,
        pools,
        partial_spans=partial_spans,
    )


class RecurrentVerifier(NumpyVerifier):
    """Implements anespec.runtime.passes.Verifier, with the carried state of the chunk pool's layer."""

    def __init__(self, shape: VerifierShape, seed: int = 0) -> None:
        super().__init__(shape, seed)
        rng = np.random.default_rng(seed + 1)
        self.chunk_layer = next(layer for layer, pool in enumerate(self.layers) if shape.pools[pool].is_chunk)
        self.rate = rounded(rng.normal(size=D) / 3)
        self.queries = rounded(rng.normal(size=(HEAD_DIM, D)) / 3)
        self.into = rounded(rng.normal(size=(D, HEAD_DIM)) / 3)
        self.decays = np.zeros((len(self.keys[self.chunk_layer]), 1))
        self.carried = np.zeros((1, 1, shape.sequences, SIZE), np.float16)
        self.folds = 0

    @property
    def chunk(self) -> int:
        return self.shape.chunk or 0

    def live(self, lane: int, place: RowSlots, plan: PassPlan) -> range:
        """The slots of its chunk that a row sees."""
        return place.visible[0]

    def state_of(self, region: int) -> Half:
        """The carried state that rows of a region read."""
        return self.carried[:, :, region : region + 1]

    def run_layer(self, layer: int, pool: int, plan: PassPlan, hidden: list[Values]) -> list[Values]:
        if layer != self.chunk_layer:
            return super().run_layer(layer, pool, plan, hidden)
        hidden = [rounded(x * self.disturbance(lane, plan)) for lane, x in enumerate(hidden)]
        for lane, (row, x) in enumerate(zip(plan.rows, hidden, strict=True)):
            if (slot := self.slot_of(lane, row.slots[pool])) is not None:
                self.keys[layer][slot] = rounded(self.k[layer] @ x)
                self.values[layer][slot] = rounded(self.v[layer] @ x)
                self.decays[slot] = rounded(-np.log1p(np.exp(self.rate @ x)) / 4)
        return [
            rounded(x + self.into @ self.recalled(lane, x, row.slots[pool], plan))
            if row.slots[pool].home is not None
            else x
            for lane, (row, x) in enumerate(zip(plan.rows, hidden, strict=True))
        ]

    def recalled(self, lane: int, x: Values, place: RowSlots, plan: PassPlan) -> Values:
        """What a row reads of its chunk and of the state at the chunk's start."""
        slots = [*self.live(lane, place, plan)]
        region = slots[0] // self.chunk
        totals = np.cumsum(self.decays[slots, 0])
        query, state = self.queries @ x, self.state_of(region).astype(np.float64).reshape(HEAD_DIM, HEAD_DIM)
        weights = (self.keys[self.chunk_layer][slots] @ query) * np.exp(totals[-1] - totals)
        recalled = np.exp(totals[-1]) * (query @ state) + weights @ self.values[self.chunk_layer][slots]
        return rounded(recalled / (1 + np.linalg.norm(recalled)))

    def arrays(self, pool: int) -> list[Values]:
        held = super().arrays(pool)
        return [*held, self.decays] if self.shape.pools[pool].is_chunk else held

    def fold(self, region: int) -> None:
        self.folds += 1
        slots = slice(region * self.chunk, (region + 1) * self.chunk)
        layer = self.chunk_layer
        rows = (self.keys[layer][slots], self.values[layer][slots], self.decays[slots])
        b, v, g = (part[None, None].astype(np.float16) for part in rows)
        self.carried[:, :, region : region + 1] = fold_ssd(b, v, g, self.carried[:, :, region : region + 1])

    def clear_carried(self, region: int) -> None:
        self.carried[:, :, region] = 0

    def copy_carried(self, source: int, target: int) -> None:
        self.import_carried(target, self.export_carried(source))

    def export_carried(self, region: int) -> Sequence[Half]:
        return [self.carried[:, :, region : region + 1].copy()]

    def import_carried(self, region: int, values: Sequence[Half]) -> None:
        (self.carried[:, :, region : region + 1],) = values


class FoldsNothing(RecurrentVerifier):
    def fold(self, region: int) -> None:
        self.folds += 1


class ForgetsAFold(RecurrentVerifier):
    """Every third fold does nothing."""

    def fold(self, region: int) -> None:
        if self.folds % 3 == 2:
            self.folds += 1
        else:
            super().fold(region)


class FoldsTheFirstRegion(RecurrentVerifier):
    """The rows are read from the first region, whichever is folded."""

    def fold(self, region: int) -> None:
        before = self.carried.copy()
        self.carried[:, :, 0] = self.carried[:, :, region]
        super().fold(0)
        folded = self.carried[:, :, 0].copy()
        self.carried[...] = before
        self.carried[:, :, region] = folded


class LastRowIsNotLive(RecurrentVerifier):
    """The last row of a sequence in a pass does not see its own slot."""

    def live(self, lane: int, place: RowSlots, plan: PassPlan) -> range:
        seen = place.visible[0]
        homes = [row.slots[2].home for row in plan.rows]
        last = max(home for home in homes if home is not None and home // self.chunk == seen[0] // self.chunk)
        return seen[:-1] if seen[-1] == last and len(seen) > 1 else seen


class StaleRowsAreLive(RecurrentVerifier):
    """A row sees the slot behind its own."""

    def live(self, lane: int, place: RowSlots, plan: PassPlan) -> range:
        seen = place.visible[0]
        end = (seen[0] // self.chunk + 1) * self.chunk
        return range(seen.start, min(seen.stop + 1, end))


class StateIsNotCopied(RecurrentVerifier):
    def copy_carried(self, source: int, target: int) -> None:
        """Nothing."""


class StateIsNotCleared(RecurrentVerifier):
    def clear_carried(self, region: int) -> None:
        """Nothing."""


class ReadsTheLastState(RecurrentVerifier):
    """All sequences read the last region's state."""

    def state_of(self, region: int) -> Half:
        return self.carried[:, :, -1:]


class HearsOtherStates(RecurrentVerifier):
    """A trace of other regions' states is added to a row's own."""

    def state_of(self, region: int) -> Half:
        others = self.carried.astype(np.float64).sum(axis=2, keepdims=True)
        return (self.carried[:, :, region : region + 1] * (1 - 1e-2) + others * 1e-2).astype(np.float16)
