"""A small transformer that keeps every promise of Verifier, and subclasses that break one each.

Rows are computed one by one in float64 and rounded to fp16, so no bit of a row can depend on its lane,
its neighbours, the partition, the base or the width, unless a fault makes it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from whole_passes import WholePasses

from anespec.manifests.graph_choices import range_widths
from anespec.runtime.passes import (
    Candidate,
    KVCacheGroupShape,
    Logits,
    PassPlan,
    PassResult,
    Row,
    RowKind,
    RowSlots,
    VerifierShape,
)

D, HEADS, HEAD_DIM, VOCABULARY = 16, 2, 8, 40
MASKED = -(2.0**15)
Values = NDArray[np.float64]


def shape_of(
    *,
    block: int = 4,
    t_min: int = 1,
    t_max: int = 8,
    context: int = 128,
    sequences: int = 1,
    window: int | None = None,
    ring: int = 64,
    partial_spans: bool = False,
) -> VerifierShape:
    """One global pool and, where there is a window, a ring beside it."""
    pools = [KVCacheGroupShape("global", context, None)]
    if window is not None:
        pools.append(KVCacheGroupShape("local", ring, window))
    widths = range_widths(block, t_min, t_max)
    return VerifierShape(
        block, widths, context, sequences, VOCABULARY, tuple(pools), partial_spans=partial_spans
    )


def rounded(values: Values) -> Values:
    return values.astype(np.float16).astype(np.float64)


class NumpyVerifier(WholePasses):
    """Implements anespec.runtime.passes.Verifier: one layer per pool and one more, one K/V head each."""

    def __init__(self, shape: VerifierShape, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._shape = shape
        self.layers = [i % len(shape.pools) for i in range(len(shape.pools) + 1)]
        self.embedding = rounded(rng.normal(size=(VOCABULARY, D)))
        self.head = rounded(rng.normal(size=(VOCABULARY, D)))
        self.q = [rounded(rng.normal(size=(D, D)) / 3) for _ in self.layers]
        self.k = [rounded(rng.normal(size=(HEAD_DIM, D)) / 3) for _ in self.layers]
        self.v = [rounded(rng.normal(size=(HEAD_DIM, D)) / 3) for _ in self.layers]
        self.out = [rounded(rng.normal(size=(D, D)) / 3) for _ in self.layers]
        slots = [shape.pools[pool].region_slots * shape.sequences for pool in self.layers]
        self.keys = [np.zeros((count, HEAD_DIM)) for count in slots]
        self.values = [np.zeros((count, HEAD_DIM)) for count in slots]
        self.passes = 0

    @property
    def shape(self) -> VerifierShape:
        return self._shape

    def slot_of(self, lane: int, place: RowSlots) -> int | None:
        """The slot that a row's K/V goes to."""
        return place.home

    def visible(self, place: RowSlots, slots: int) -> list[int]:
        """The slots that a row sees."""
        return [slot for span in place.visible for slot in span]

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        """What a row's hidden state is multiplied with in every layer."""
        return 1.0

    def merged(self, mixed: Values) -> Values:
        """[heads, T, head_dim] -> [T, heads * head_dim]."""
        return mixed.transpose(0, 2, 1).reshape(D, -1).T

    def rotated(self, x: Values, lane: int, row: Row) -> Values:
        angles = row.position / 10.0 ** np.arange(HEAD_DIM // 2)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack(
            (even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)),
            axis=-1,
        ).reshape(x.shape)

    def forward(self, plan: PassPlan) -> Logits | None:
        self.passes += 1
        hidden = [self.embedding[row.token] for row in plan.rows]
        for layer, pool in enumerate(self.layers):
            hidden = self.run_layer(layer, pool, plan, hidden)
        if not plan.wanted:
            return None
        return np.stack([(self.head @ x).astype(np.float16) for x in hidden])

    def run_layer(self, layer: int, pool: int, plan: PassPlan, hidden: list[Values]) -> list[Values]:
        hidden = [rounded(x * self.disturbance(lane, plan)) for lane, x in enumerate(hidden)]
        queries = []
        for lane, (row, x) in enumerate(zip(plan.rows, hidden, strict=True)):
            queries.append(self.rotated((self.q[layer] @ x).reshape(HEADS, HEAD_DIM), lane, row))
            slot = self.slot_of(lane, row.slots[pool])
            if slot is not None:
                self.keys[layer][slot] = rounded(self.rotated(self.k[layer] @ x, lane, row))
                self.values[layer][slot] = rounded(self.v[layer] @ x)
        mixed = np.stack(
            [
                self.attend(layer, query, row.slots[pool], plan.spans[pool])
                for query, row in zip(queries, plan.rows, strict=True)
            ],
            axis=1,
        )
        outputs = self.merged(mixed)
        return [rounded(x + self.out[layer] @ outputs[lane]) for lane, x in enumerate(hidden)]

    def attend(self, layer: int, query: Values, place: RowSlots, span: int) -> Values:
        """[heads, head_dim] of one row, over every slot of the span through the mask."""
        mask = np.full(span, MASKED)
        mask[self.visible(place, span)] = 0
        scores = query @ self.keys[layer][:span].T + mask
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return rounded((weights / weights.sum(axis=1, keepdims=True)) @ self.values[layer][:span])

    def arrays(self, pool: int) -> list[Values]:
        return [
            array
            for layer, its_pool in enumerate(self.layers)
            if its_pool == pool
            for array in (self.keys[layer], self.values[layer])
        ]

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        self.import_slots(pool, target, self.export_slots(pool, source, count))

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        return [a[None, None, first : first + count].astype(np.float16) for a in self.arrays(pool)]

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        for array, value in zip(self.arrays(pool), values, strict=True):
            array[first : first + value.shape[2]] = value[0, 0]

    def close(self) -> None:
        """Nothing to release."""


SLIGHTLY = 1 + 2.0**-9


class Flattened(NumpyVerifier):
    """The head/token/dimension flattening bug: right for T = 1 only."""

    def merged(self, mixed: Values) -> Values:
        return mixed.reshape(D, -1).T


class WrongSlot(NumpyVerifier):
    """Every lane but the first writes its K/V one slot late."""

    def slot_of(self, lane: int, place: RowSlots) -> int | None:
        return place.home if place.home is None or lane == 0 else (place.home + 1) % len(self.keys[0])


class MaskOffByOne(NumpyVerifier):
    """Every row sees one slot too many."""

    def visible(self, place: RowSlots, slots: int) -> list[int]:
        return [slot for span in place.visible for slot in range(span.start, min(span.stop + 1, slots))]


class StaleNaN(NumpyVerifier):
    """A slot that nobody wrote yet is not a number."""

    def __init__(self, shape: VerifierShape, seed: int = 0) -> None:
        super().__init__(shape, seed)
        self.values[-1][-1] = np.nan


class PadsWriteNaN(NumpyVerifier):
    """A pad row, which must write nowhere, leaves what is not a number in the last slot."""

    def slot_of(self, lane: int, place: RowSlots) -> int | None:
        if place.home is None:
            self.values[-1][-1] = np.nan
        return place.home


class SwappedPairOffLane0(NumpyVerifier):
    """Every lane but the first turns its pairs the other way."""

    def rotated(self, x: Values, lane: int, row: Row) -> Values:
        if lane == 0:
            return super().rotated(x, lane, row)
        swapped = x.reshape(*x.shape[:-1], -1, 2)[..., ::-1].reshape(x.shape)
        return super().rotated(swapped, lane, row)


class LaneVariant(NumpyVerifier):
    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return 1.0 if lane == 0 else SLIGHTLY


class PartitionDependent(NumpyVerifier):
    """Passes with an odd number of rows that write round differently than even ones of three or more."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        writing = sum(row.slots[0].home is not None for row in plan.rows)
        return SLIGHTLY if writing == 2 else 1.0


class NeighbourDependent(NumpyVerifier):
    """A row's bits depend on the tokens beside it."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        others = sum(row.token for i, row in enumerate(plan.rows) if i != lane)
        return SLIGHTLY if others % 2 else 1.0


class BaseDependent(NumpyVerifier):
    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return SLIGHTLY if plan.rows[lane].slots[0].visible[0].start >= self.shape.context else 1.0


class WidthDependent(NumpyVerifier):
    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return 1.0 if len(plan.rows) == self.shape.block else SLIGHTLY


class OneWidthDependent(NumpyVerifier):
    """Passes of 16 rows have other bits, and no others."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return SLIGHTLY if len(plan.rows) == 16 else 1.0


class NarrowDependent(NumpyVerifier):
    """Passes of two rows have other bits, and no others."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return SLIGHTLY if len(plan.rows) == 2 else 1.0


class SpanDependent(NumpyVerifier):
    """A sum over fewer slots rounds differently."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return SLIGHTLY if plan.spans != self.shape.whole_spans else 1.0


class OneSpanDependent(NumpyVerifier):
    """The same for one number of slots in the last pool only."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return SLIGHTLY if plan.spans[-1] == 384 else 1.0


class SpanTooShort(NumpyVerifier):
    """The last slot of a partial span is left out."""

    def visible(self, place: RowSlots, slots: int) -> list[int]:
        whole = slots in self.shape.whole_spans
        return [slot for slot in super().visible(place, slots) if whole or slot < slots - 1]


class HeadOfWantedRows(NumpyVerifier):
    """The head runs on the rows that are wanted alone, where its sums add up differently."""

    def forward(self, plan: PassPlan) -> Logits | None:
        logits = super().forward(plan)
        return (
            logits if logits is None or len(plan.wanted) == len(plan.rows) else logits * np.float16(SLIGHTLY)
        )


class SkipsUnwanted(NumpyVerifier):
    """Rows of which nothing is wanted are computed another way."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return 1.0 if lane in plan.wanted else SLIGHTLY


class BestIsOff(NumpyVerifier):
    """All logits are right, but the best of them is said to be the token after it."""

    def wait(self) -> PassResult:
        return {
            lane: found
            if found.best is None
            else replace(found, best=Candidate(found.best.token + 1, found.best.logit))
            for lane, found in super().wait().items()
        }


class OwnPadsDisturb(NumpyVerifier):
    """The pads that the verifier makes up disturb the row that they look at."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        own = any(row.kind is RowKind.PAD and row.position == 0 for row in plan.rows)
        return SLIGHTLY if own and plan.rows[lane].position else 1.0


class Wavering(NumpyVerifier):
    """The same pass twice gives other bits."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return SLIGHTLY if self.passes % 7 == 0 else 1.0


class LogitsNaN(NumpyVerifier):
    """The last lane's logits are not numbers; its K/V is fine."""

    def forward(self, plan: PassPlan) -> Logits | None:
        logits = super().forward(plan)
        if logits is not None:
            logits[-1, 0] = np.nan
        return logits
