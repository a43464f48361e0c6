"""Rows, passes and the Verifier protocol: the seam between the engine and every backend.

Rows carry slot numbers; a backend turns them into whatever its inputs are. A pass names the requested results
of each row; nothing is computed, copied or rounded for other rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anespec.system.errors import AnespecError

Logits = NDArray[np.float16]

SPAN_STEP = 256
"""The least number of slots that a pass attends to, where a pool has as many."""


class RowKind(StrEnum):
    """Why a row is in its pass. A FORCED row's token is the only one that a grammar allows there."""

    PROMPT = "prompt"
    CARRY = "carry"
    FORCED = "forced"
    DRAFT = "draft"
    PAD = "pad"


@dataclass(frozen=True)
class RowSlots:
    """A row's slots in one pool.

    `home` is the slot that its K/V is written to, None for a pad row, which writes nowhere. `visible` are the
    ranges of slots that the row attends to, its own slot among them; never empty, since a softmax over
    nothing is NaN.
    """

    home: int | None
    visible: tuple[range, ...]


@dataclass(frozen=True)
class Row:
    """One query position in a pass. `slots` has one entry per pool, in the manifest's order."""

    kind: RowKind
    token: int
    position: int
    slots: tuple[RowSlots, ...]


@dataclass(frozen=True)
class LogitsRequest:
    """The requested results of one row's logits.

    `best` asks for the largest logit, `top` for so many of the largest, `chosen` for those of given
    tokens, `logits` for all of them. A backend whose logits are far away returns just that.
    """

    logits: bool = False
    best: bool = False
    top: int = 0
    chosen: tuple[int, ...] = ()


ALL_LOGITS = LogitsRequest(logits=True)
BEST_LOGIT = LogitsRequest(best=True)


@dataclass(frozen=True)
class PassPlan:
    """One pass.

    A row's lane is its index; the lanes from `len(rows)` up to `width`, which is T, are pads that the
    verifier makes up. (A gate also places pads of its own between rows.) Two rows never write the same
    slot. `spans[p]` says how many slots of pool p, from slot 0 on, the pass may write or look at; it is one
    of the shape's `span_steps`. `wanted` has what is needed of rows, by lane; where it is empty the head
    shards are not run.
    """

    rows: tuple[Row, ...]
    width: int
    spans: tuple[int, ...]
    wanted: Mapping[int, LogitsRequest]

    @property
    def wants_best_alone(self) -> bool:
        """Whether rows are wanted, and nothing of them but the largest logit."""
        return bool(self.wanted) and all(need == BEST_LOGIT for need in self.wanted.values())


@dataclass(frozen=True)
class Candidate:
    """A token and its logit. Where a row of logits is not finite, so is its best candidate's."""

    token: int
    logit: float


@dataclass(frozen=True)
class RowLogits:
    """The results of one requested row; results that were not requested are None or empty.

    `best` is the largest logit, as fp16, the lowest token on ties; `top` are the largest, in that order;
    `chosen` the logits of the requested tokens.
    """

    logits: Logits | None = None
    best: Candidate | None = None
    top: tuple[Candidate, ...] = ()
    chosen: tuple[float, ...] = ()


PassResult = Mapping[int, RowLogits]
"""By the lanes that were wanted."""


class StateLostError(AnespecError):
    """The verifier's whole state is lost, including all K/V, and was reset to zeros; passes may continue."""


def span_steps(slots: int) -> tuple[int, ...]:
    """The spans that passes over a pool of so many slots may have, ascending: powers of two and the numbers
    midway, from SPAN_STEP on, so that at most half as much again is attended to as is in use.

    Few, so that the exactness gate can measure every one that the engine will ever run.
    """
    steps = []
    step = SPAN_STEP
    while step < slots:
        steps += [step] if step == SPAN_STEP else [step * 3 // 4, step]
        step *= 2
    steps += [step * 3 // 4] if steps and step * 3 // 4 < slots else []
    return (*steps, slots)


@dataclass(frozen=True)
class KVCacheGroupShape:
    """The properties of a pool that the engine needs to place rows (see manifests.schema.KVCacheGroup).

    The last `spare_slots` of a region hold no token.
    """

    name: str
    region_slots: int
    window: int | None
    spare_slots: int = 0

    @property
    def token_slots(self) -> int:
        """The slots of one region that hold tokens: those of the context, or a ring."""
        return self.region_slots - self.spare_slots


@dataclass(frozen=True)
class VerifierShape:
    """The properties of a verifier that the engine needs: the block, every width that a pass may have, and
    sizes.

    `widths` are ascending, the block among them. They are few, so that the exactness gate can measure every
    one that the engine will ever run. `partial_spans` is whether a pass may attend to fewer slots than a pool
    has. `side_by_side` is whether a pass writes one stretch of slots: its rows are of one sequence then, from
    lane 0 on, in home slots one after another, and its pads write into the slots behind them, where nothing
    is that any row may still see. `finds_best` is whether passes that want the best tokens alone run
    something else, which the gates measure too.
    """

    block: int
    widths: tuple[int, ...]
    context: int
    sequences: int
    vocabulary: int
    pools: tuple[KVCacheGroupShape, ...]
    partial_spans: bool = False
    side_by_side: bool = False
    finds_best: bool = False

    @property
    def t_min(self) -> int:
        """Rows of the narrowest pass."""
        return self.widths[0]

    @property
    def t_max(self) -> int:
        """Rows of the widest pass."""
        return self.widths[-1]

    @property
    def wide_widths(self) -> tuple[int, ...]:
        """Those of at least as many rows as a block has, the block's own first."""
        return tuple(width for width in self.widths if width >= self.block)

    def span_steps(self, pool: int) -> tuple[int, ...]:
        """The spans that a pass may have in a pool, ascending, its number of slots last."""
        slots = self.pools[pool].region_slots * self.sequences
        return span_steps(slots) if self.partial_spans else (slots,)

    @property
    def pages(self) -> tuple[int, ...]:
        """How many slots of one region stand side by side, by pool: see SlotMapping. All of them where passes
        attend to every slot anyway, or where a region is not made of whole pages.

        Libraries split sums over slots at fixed ones, 1024 in OpenVINO's case. Every region must meet those
        splits alike, or its bits depend on where it is; so only powers of two take turns. Rows that are
        written side by side must not meet the end of a page.
        """
        paged = self.partial_spans and self.sequences > 1 and self.sequences.bit_count() == 1
        paged = paged and not self.side_by_side
        return tuple(
            SPAN_STEP if paged and pool.region_slots % SPAN_STEP == 0 else pool.region_slots
            for pool in self.pools
        )

    @property
    def spans(self) -> tuple[tuple[int, ...], ...]:
        """The spans that passes may have, by pool."""
        return tuple(self.span_steps(pool) for pool in range(len(self.pools)))

    @property
    def whole_spans(self) -> tuple[int, ...]:
        """The spans of a pass that attends to every slot of every pool."""
        return tuple(pool.region_slots * self.sequences for pool in self.pools)


class Verifier(Protocol):
    """A backend holding an artifact: runs passes over a state that it owns.

    The state starts as zeros. Slots are absolute: which region has which is for SlotMapping to say.
    Every call may raise StateLostError.
    """

    @property
    def shape(self) -> VerifierShape:
        """Sizes; constant over the verifier's life."""
        ...

    def submit(self, plan: PassPlan) -> None:
        """Begin a pass: write every row's K/V, find what is wanted. `wait` must be the next call."""
        ...

    def wait(self) -> PassResult:
        """Return the results of the pass begun by `submit`; the pass is over then, even if this raises."""
        ...

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy the K/V bits of `count` slots of pool number `pool` from slot `source` to `target`."""
        ...

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        """The K/V bits of `count` slots: one array [1, n_kv, count, head_dim] per state of the pool."""
        ...

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Write back what `export_slots` returned, to the slots from `first` on."""
        ...

    def close(self) -> None:
        """Release the backend's memory; the verifier cannot be used afterwards."""
        ...


def run_pass(verifier: Verifier, plan: PassPlan) -> PassResult:
    """Run one pass from beginning to end."""
    verifier.submit(plan)
    return verifier.wait()


def whole_plan(
    shape: VerifierShape, rows: Sequence[Row], *, width: int | None = None, wants_logits: bool = True
) -> PassPlan:
    """A pass of these rows over every slot, with all logits of every row, or none.

    It is as wide as there are rows, unless another width is given.
    """
    wanted = dict.fromkeys(range(len(rows)), ALL_LOGITS) if wants_logits else {}
    return PassPlan(tuple(rows), width or len(rows), shape.whole_spans, wanted)


def run_rows(verifier: Verifier, rows: Sequence[Row], width: int | None = None) -> Logits:
    """The logits [rows, vocabulary] of a pass of these rows, in which every slot is attended to."""
    result = run_pass(verifier, whole_plan(verifier.shape, rows, width=width))
    return np.stack([all_logits(result[lane]) for lane in range(len(rows))])


def all_logits(row: RowLogits) -> Logits:
    """The logits [vocabulary] of a row of which all were wanted.

    Raises:
        AnespecError: the verifier did not return them.
    """
    if row.logits is None:
        raise AnespecError("the verifier returned no logits for a row that needs them")
    return row.logits
