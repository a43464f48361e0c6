"""Define rows, passes and the Verifier protocol: the interface between the engine and every backend.

A row has slot numbers; a backend turns them into its own inputs (masks, one-hot rows, positions). A pass
names the results that each row needs; a backend computes, copies and rounds nothing else.
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
"""The smallest span: a pass attends to at least this many slots of a pool, or to all if it has fewer."""


class RowKind(StrEnum):
    """Why a row is in its pass.

    PROMPT: a token of the prompt. CARRY: the last committed token, whose K/V is not yet written. FORCED: the
    only token that the grammar allows at its position. DRAFT: a guess. PAD: no token.
    """

    PROMPT = "prompt"
    CARRY = "carry"
    FORCED = "forced"
    DRAFT = "draft"
    PAD = "pad"


@dataclass(frozen=True)
class RowSlots:
    """A row's slots in one pool.

    The row's K/V is written to slot `home`; a pad row has None and writes nowhere. The row attends to the
    ranges of slots in `visible`, which include its own slot. `visible` is never empty, since a softmax over
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
    """The results that are needed of one row's logits.

    `best` asks for the largest logit, `top` for the `top` largest, `chosen` for the logits of these tokens,
    `logits` for all logits. A backend whose logits are in another process transfers only what is asked for.
    """

    logits: bool = False
    best: bool = False
    top: int = 0
    chosen: tuple[int, ...] = ()


ALL_LOGITS = LogitsRequest(logits=True)
BEST_LOGIT = LogitsRequest(best=True)


@dataclass(frozen=True)
class PassPlan:
    """The rows of one pass, its width and its spans.

    A row's lane is its index. `width` is T; the verifier fills the lanes from `len(rows)` to `width` with
    pads. (A gate also places pads of its own between rows.) Two rows never write the same slot. The pass may
    write and attend to the first `spans[p]` slots of pool p, a number from the shape's `span_steps`. `wanted`
    holds the requested results by lane; if it is empty, the head shards are not run.
    """

    rows: tuple[Row, ...]
    width: int
    spans: tuple[int, ...]
    wanted: Mapping[int, LogitsRequest]

    @property
    def wants_best_alone(self) -> bool:
        """Whether results are wanted, and each of them is the largest logit alone."""
        return bool(self.wanted) and all(need == BEST_LOGIT for need in self.wanted.values())


@dataclass(frozen=True)
class Candidate:
    """A token and its logit.

    If any logit of a row is not finite, the logit of the row's best candidate is not finite either.
    """

    token: int
    logit: float


@dataclass(frozen=True)
class RowLogits:
    """The results of one row; results that were not requested are None or empty.

    `best` is the token with the largest fp16 logit, on ties the lowest token. `top` are the tokens with the
    largest logits, sorted the same way. `chosen` are the logits of the requested tokens, in their order.
    """

    logits: Logits | None = None
    best: Candidate | None = None
    top: tuple[Candidate, ...] = ()
    chosen: tuple[float, ...] = ()


PassResult = Mapping[int, RowLogits]
"""The results of the wanted rows, by lane."""


class StateLostError(AnespecError):
    """The verifier lost its whole state with all K/V, and reset it to zeros; passes may continue."""


class StateOverflowError(AnespecError):
    """A region's carried state would leave fp16's range; the state was left as it is."""


def span_steps(slots: int) -> tuple[int, ...]:
    """Return the spans that passes may have over a pool of `slots` slots, ascending.

    They are the powers of two and the numbers midway between them, from SPAN_STEP on, and `slots` itself. So
    a pass attends to at most 1.5 times the slots that are in use. They are few, so that the exactness gate
    can measure every span that the engine will ever run.
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
    """The properties of a pool of K/V slots that the engine needs to place rows.

    `region_slots` are the slots of one sequence; the last `spare_slots` of them hold no token. `window` is
    the sliding window in tokens, None for full attention. With `is_chunk` the slots hold the rows of one
    chunk of positions, for recurrent layers. See manifests.schema.KVCacheGroup.
    """

    name: str
    region_slots: int
    window: int | None
    spare_slots: int = 0
    is_chunk: bool = False

    @property
    def token_slots(self) -> int:
        """The number of slots of one region that hold tokens: the whole context, a ring, or a chunk."""
        return self.region_slots - self.spare_slots


@dataclass(frozen=True)
class VerifierShape:
    """The sizes and properties of a verifier that the engine needs.

    `widths` are the numbers of rows that a pass may have, ascending, the `block` among them. They are few, so
    that the exactness gate can measure every width that the engine will ever run. With `partial_spans` a pass
    may attend to fewer slots than a pool has.

    With `side_by_side` a pass writes one stretch of slots. Then all its rows belong to one sequence, start at
    lane 0 and have consecutive home slots; its pads write into the slots after them, which hold nothing that
    a row may still see. In a pool of chunks pads write nothing. With `finds_best` the backend runs another
    program for passes that want the best tokens alone; the gates measure it too.
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
        """The rows of the narrowest pass."""
        return self.widths[0]

    @property
    def t_max(self) -> int:
        """The rows of the widest pass."""
        return self.widths[-1]

    @property
    def wide_widths(self) -> tuple[int, ...]:
        """The widths from the block on, ascending."""
        return tuple(width for width in self.widths if width >= self.block)

    @property
    def chunk(self) -> int | None:
        """The number of positions of a chunk; None if the model has no recurrent layers.

        Then each region also has a carried state, which stands at the start of its sequence's chunk.
        """
        return next((pool.region_slots for pool in self.pools if pool.is_chunk), None)

    def span_steps(self, pool: int) -> tuple[int, ...]:
        """Return the spans that a pass may have in a pool, ascending; the last is the whole pool.

        A pass always covers all slots of a chunk pool.
        """
        slots = self.pools[pool].region_slots * self.sequences
        return span_steps(slots) if self.partial_spans and not self.pools[pool].is_chunk else (slots,)

    @property
    def pages(self) -> tuple[int, ...]:
        """The page size of each pool: how many slots of one region are contiguous (see SlotMapping).

        A page is the whole region if passes attend to every slot anyway, or if the region is not a multiple
        of SPAN_STEP. Libraries split sums over slots at fixed slot numbers (OpenVINO at multiples of 1024).
        All regions must be split in the same way, or a row's bits would depend on its region; so pages are
        interleaved only if the number of regions is a power of two. Rows that are written side by side must
        not cross the end of a page, so they have no pages.
        """
        paged = self.partial_spans and self.sequences > 1 and self.sequences.bit_count() == 1
        paged = paged and not self.side_by_side
        return tuple(
            SPAN_STEP
            if paged and pool.region_slots % SPAN_STEP == 0 and not pool.is_chunk
            else pool.region_slots
            for pool in self.pools
        )

    @property
    def spans(self) -> tuple[tuple[int, ...], ...]:
        """The spans that passes may have, ascending, by pool."""
        return tuple(self.span_steps(pool) for pool in range(len(self.pools)))

    @property
    def whole_spans(self) -> tuple[int, ...]:
        """The spans of a pass that attends to every slot of every pool."""
        return tuple(pool.region_slots * self.sequences for pool in self.pools)


class Verifier(Protocol):
    """A backend that has loaded an artifact, and runs passes over the K/V state that it owns.

    The state starts as zeros. Slots are absolute; SlotMapping says which region they belong to. Every call
    may raise StateLostError. `fold` and the calls that name a carried state are for shapes with a chunk.
    """

    @property
    def shape(self) -> VerifierShape:
        """The verifier's sizes, which never change."""
        ...

    def submit(self, plan: PassPlan) -> None:
        """Begin a pass: write the K/V of every row and compute the wanted results. Call `wait` next."""
        ...

    def wait(self) -> PassResult:
        """Return the results of the pass that `submit` began; the pass is over even if this raises."""
        ...

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy the K/V bits of `count` slots of pool number `pool` from slot `source` to `target`."""
        ...

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        """Return the K/V bits of `count` slots: an array [1, n_kv, count, head_dim] per state of the pool."""
        ...

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Write arrays that `export_slots` returned to the slots from `first` on."""
        ...

    def fold(self, region: int) -> None:
        """Move a region's carried state to the end of its chunk, whose slots are all written.

        The state becomes a function of itself and of the rows in the region's slots of the chunk pool. If
        this raises, it may have changed in part.

        Raises:
            StateOverflowError: the new state leaves fp16's range.
        """
        ...

    def clear_carried(self, region: int) -> None:
        """Set a region's carried state to that at the start of a text, zeros."""
        ...

    def copy_carried(self, source: int, target: int) -> None:
        """Copy the bits of a region's carried state to another region."""
        ...

    def export_carried(self, region: int) -> Sequence[NDArray[np.float16]]:
        """Return the bits of a region's carried state: an array [1, heads, 1, size] per recurrent layer."""
        ...

    def import_carried(self, region: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Write arrays that `export_carried` returned to a region's carried state."""
        ...

    def close(self) -> None:
        """Release the backend's memory; the verifier cannot be used afterwards."""
        ...


def run_pass(verifier: Verifier, plan: PassPlan) -> PassResult:
    """Run one pass from beginning to end."""
    verifier.submit(plan)
    return verifier.wait()


def begin_rows(verifier: Verifier, region: int, position: int) -> None:
    """Prepare a region for rows from `position` on, where all positions before it have run one after another.

    The carried state is cleared at position 0, and a chunk that has just become whole is folded. Passes may
    follow; call this again only for a later position. (An engine does this in its RegionStore.)
    """
    if (chunk := verifier.shape.chunk) is None:
        return
    if position == 0:
        verifier.clear_carried(region)
    elif position % chunk == 0:
        verifier.fold(region)


def whole_plan(
    shape: VerifierShape, rows: Sequence[Row], *, width: int | None = None, wants_logits: bool = True
) -> PassPlan:
    """Return a pass of these rows that attends to every slot, and wants all logits of every row, or none.

    The pass is as wide as there are rows, unless `width` is given.
    """
    wanted = dict.fromkeys(range(len(rows)), ALL_LOGITS) if wants_logits else {}
    return PassPlan(tuple(rows), width or len(rows), shape.whole_spans, wanted)


def run_rows(verifier: Verifier, rows: Sequence[Row], width: int | None = None) -> Logits:
    """Run a pass of these rows that attends to every slot; return its logits [rows, vocabulary]."""
    result = run_pass(verifier, whole_plan(verifier.shape, rows, width=width))
    return np.stack([all_logits(result[lane]) for lane in range(len(rows))])


def all_logits(row: RowLogits) -> Logits:
    """Return the logits [vocabulary] of a row for which all logits were requested.

    Raises:
        AnespecError: the verifier did not return them.
    """
    if row.logits is None:
        raise AnespecError("the verifier returned no logits for a row that needs them")
    return row.logits
