"""The ways in which the exactness gate runs the same tokens, all of which must give the same bits.

A *probe* says which tokens stand at which positions. A *case* defines the passes, the lanes, the other rows,
the requested results and the span. Every case of a probe must leave the same bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

import numpy as np

from anespec.runtime.engine.planner import least_spans
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import (
    ALL_LOGITS,
    BEST_LOGIT,
    LogitsRequest,
    PassPlan,
    Row,
    RowKind,
    RowSlots,
    VerifierShape,
)
from anespec.system.formatting import counted


@dataclass(frozen=True)
class CaseRow:
    """One lane of a planned pass: a row that has no slots yet.

    `recorded` is False for rows whose logits nobody compares: pads, wrong drafts, other sequences.
    A pad stands at `position` only to look at that position's slot.
    """

    kind: RowKind
    token: int
    position: int
    region: int = 0
    recorded: bool = False

    def row(self, region_map: SlotMapping) -> Row:
        """The row in its slots; a pad writes nowhere and sees the one slot of its position."""
        slots = region_map.slots(self.region, self.position)
        if self.kind is RowKind.PAD:
            slots = tuple(_looking_at(own.home or 0) for own in slots)
        return Row(self.kind, self.token, self.position, slots)


def _looking_at(slot: int) -> RowSlots:
    return RowSlots(None, (range(slot, slot + 1),))


@dataclass(frozen=True)
class CasePass:
    """Rows for the first lanes of a pass; the verifier makes up pads for those that are left.

    `wanted` has needs by lane, and all logits of every row where it is None; `spans` as in PassPlan, every
    slot where it is None.
    """

    rows: tuple[CaseRow, ...]
    width: int
    wanted: Mapping[int, LogitsRequest] | None = None
    spans: tuple[int, ...] | None = None

    def plan(self, shape: VerifierShape, region_map: SlotMapping) -> PassPlan:
        """The pass for a verifier of that shape."""
        rows = tuple(planned.row(region_map) for planned in self.rows)
        spans = self.spans or shape.whole_spans
        if shape.side_by_side:
            # Its pads write, too, which may take it beyond the span that its rows see.
            spans = tuple(map(max, spans, least_spans(rows, self.width, shape)))
        return PassPlan(rows, self.width, spans, self.needs)

    @property
    def needs(self) -> Mapping[int, LogitsRequest]:
        """What is wanted of each lane."""
        return dict.fromkeys(range(len(self.rows)), ALL_LOGITS) if self.wanted is None else self.wanted


@dataclass(frozen=True)
class Probe:
    """`tokens` stand at positions `start` and on. The past before them is laid once.

    The past is made of the K/V of `past`, run through the model, and copies of it up to `start`.
    """

    past: tuple[int, ...]
    start: int
    tokens: tuple[int, ...]

    @property
    def positions(self) -> range:
        """The positions that every case of this probe visits."""
        return range(self.start, self.start + len(self.tokens))

    def row(self, index: int, kind: RowKind = RowKind.PROMPT) -> CaseRow:
        """The row of token number `index`."""
        return CaseRow(kind, self.tokens[index], self.start + index, recorded=True)

    def part(self, first: int, end: int) -> "Probe":
        """The tokens from number `first` to before `end`, which may be beyond the last, where they stand."""
        return replace(self, start=self.start + first, tokens=self.tokens[first:end])


@dataclass(frozen=True)
class InvarianceCase:
    """A named way to run a probe."""

    name: str
    passes: tuple[CasePass, ...]


def side_by_side(planned: CasePass, region_map: SlotMapping) -> Iterator[CasePass]:
    """A pass as a verifier runs it that writes rows side by side (see VerifierShape): maybe several passes.

    Each has rows of one sequence from lane 0 on, and behind them the pads that stood anywhere in the pass. So
    a row's lane is told by the rows before it: where passes are cut otherwise, rows stand in other lanes.
    """
    needs = planned.needs
    real = [(row, needs.get(lane)) for lane, row in enumerate(planned.rows) if row.kind is not RowKind.PAD]
    pads = [row for row in planned.rows if row.kind is RowKind.PAD]
    while real:
        first, count = real[0][0], 1
        while count < min(len(real), region_map.longest_run_from(first.position)) and (
            real[count][0].region == first.region and real[count][0].position == first.position + count
        ):
            count += 1
        run, real = real[:count], real[count:]
        rows = (*(row for row, _ in run), *pads[: planned.width - count])
        wanted = {lane: need for lane, (_, need) in enumerate(run) if need is not None}
        yield replace(planned, rows=rows, wanted=wanted)


def padded(rows: Sequence[CaseRow], width: int, lane: int = 0) -> CasePass:
    """`rows` from `lane` on in a pass of `width` lanes, the others pads that see the first row's slot."""
    pad = CaseRow(RowKind.PAD, 0, rows[0].position, rows[0].region)
    after = width - lane - len(rows)
    return CasePass((*(pad,) * lane, *rows, *(pad,) * after), width)


def one_row_a_pass(probe: Probe, width: int, lane: int = 0) -> InvarianceCase:
    """Every token alone in its pass, in one lane, beside pads."""
    count = len(probe.tokens)
    passes = tuple(padded([probe.row(i, RowKind.CARRY)], width, lane) for i in range(count))
    return InvarianceCase(f"one row a pass in lane {lane} of {width}", passes)


def lane_after_lane(probe: Probe, width: int) -> InvarianceCase:
    """Every token alone in its pass, each in the lane after the last one's: from lane 1 on, all in turn."""
    count = len(probe.tokens)
    passes = tuple(padded([probe.row(i, RowKind.CARRY)], width, (i + 1) % width) for i in range(count))
    return InvarianceCase(f"one row a pass in lanes 1, 2 and on of {width}", passes)


def cut(probe: Probe, sizes: Sequence[int], width: int) -> InvarianceCase:
    """The tokens cut into passes of `sizes` rows (repeated as needed), filled up with pads."""
    passes: list[CasePass] = []
    done = 0
    while done < len(probe.tokens):
        size = min(sizes[len(passes) % len(sizes)], len(probe.tokens) - done)
        passes.append(padded([probe.row(i) for i in range(done, done + size)], width))
        done += size
    return InvarianceCase(
        f"cut into {'+'.join(map(str, sizes))} rows in {counted(width, 'lane')}", tuple(passes)
    )


def speculated(
    probe: Probe,
    accepted: Sequence[int],
    width: int,
    vocabulary: int,
    rng: np.random.Generator,
    context: int | None = None,
) -> InvarianceCase:
    """A carry row and drafts in every pass: the first `accepted` of them right, the others wrong.

    `accepted` is repeated as needed. A wrong draft is any token but the right one. Nothing is drafted past
    the end of a `context`; pads take those lanes.
    """
    passes: list[CasePass] = []
    done, count = 0, len(probe.tokens)
    while done < count:
        right = min(accepted[len(passes) % len(accepted)], width - 1, count - done - 1)
        rows = [probe.row(done, RowKind.CARRY)]
        rows += [probe.row(done + i, RowKind.DRAFT) for i in range(1, right + 1)]
        for index in range(done + right + 1, done + width):
            true = probe.tokens[index] if index < count else 0
            wrong = (true + 1 + int(rng.integers(max(1, vocabulary - 1)))) % vocabulary
            if context is None or probe.start + index < context:
                rows.append(CaseRow(RowKind.DRAFT, wrong, probe.start + index))
        passes.append(padded(rows, width))
        done += right + 1
    return InvarianceCase(f"drafts of which {'+'.join(map(str, accepted))} are accepted", tuple(passes))


def with_random_pads(
    case: InvarianceCase, probe: Probe, vocabulary: int, rng: np.random.Generator
) -> InvarianceCase:
    """The same rows in the same lanes beside pads of other tokens that see other slots."""

    def other(row: CaseRow) -> CaseRow:
        if row.kind is not RowKind.PAD:
            return row
        position = int(rng.integers(probe.start + 1))
        return replace(row, token=int(rng.integers(vocabulary)), position=position)

    return _each_row(case, f"{case.name}, other pads", other)


def with_made_up_pads(case: InvarianceCase) -> InvarianceCase:
    """The same rows in the same lanes, where the verifier makes up the pads behind the last of them."""
    passes = []
    for planned in case.passes:
        last = max(lane for lane, row in enumerate(planned.rows) if row.kind is not RowKind.PAD)
        passes.append(replace(planned, rows=planned.rows[: last + 1]))
    return InvarianceCase(f"{case.name}, the verifier's own pads", tuple(passes))


def with_another_sequence(
    case: InvarianceCase, region: int, vocabulary: int, rng: np.random.Generator, context: int | None = None
) -> InvarianceCase:
    """Every pad becomes a row of a sequence that grows in another region.

    Where the next pass would take it past the end of a `context`, another sequence starts there.
    """
    passes: list[CasePass] = []
    position = 0
    for planned in case.passes:
        rows = []
        pads = sum(row.kind is RowKind.PAD for row in planned.rows)
        if context is not None and position + pads > context:
            position = 0
        for row in planned.rows:
            if row.kind is RowKind.PAD:
                rows.append(CaseRow(RowKind.PROMPT, int(rng.integers(vocabulary)), position, region))
                position += 1
            else:
                rows.append(row)
        passes.append(replace(planned, rows=tuple(rows)))
    return InvarianceCase(f"{case.name}, beside another sequence", tuple(passes))


def in_region(case: InvarianceCase, region: int) -> InvarianceCase:
    """The same case at another base."""
    return _each_row(case, f"{case.name} in region {region}", lambda row: replace(row, region=region))


def wanting(case: InvarianceCase, needs: Mapping[int, LogitsRequest], name: str) -> InvarianceCase:
    """The same case where nothing is wanted but `needs`, by lane, of the rows that are recorded."""
    passes = []
    for planned in case.passes:
        wanted = {lane: need for lane, need in needs.items() if lane < len(planned.rows)}
        wanted = {lane: need for lane, need in wanted.items() if planned.rows[lane].recorded}
        passes.append(replace(planned, wanted=wanted))
    return InvarianceCase(f"{case.name}, {name}", tuple(passes))


def at_spans(case: InvarianceCase, spans: tuple[int, ...]) -> InvarianceCase:
    """The same case in passes that look at so many slots of each pool."""
    passes = tuple(replace(planned, spans=spans) for planned in case.passes)
    return InvarianceCase(f"{case.name}, spans of {'+'.join(map(str, spans))} slots", passes)


def _each_row(case: InvarianceCase, name: str, change: Callable[[CaseRow], CaseRow]) -> InvarianceCase:
    passes = tuple(replace(planned, rows=tuple(map(change, planned.rows))) for planned in case.passes)
    return InvarianceCase(name, passes)


# Cases that change all at once what a row must not depend on, by a seeded plan.
#
# A pass of such a case has some of the probe's rows in any of its lanes. Beside them stand pads, wrong
# drafts, rows of another sequence, or pads that the verifier makes up, and of some rows no logits are wanted,
# or only the likeliest. Where the bits stay the same all the same, none of it matters, and one pass has shown
# for several rows what would else take one for each row and each circumstance.

LIKELIEST = 5
"""How many of the largest logits a check asks for."""

Choice = TypeVar("Choice")


class _Beside(Enum):
    """The content of lanes that the probe's rows leave free."""

    PADS = auto()
    OWN_PADS = auto()
    WRONG_DRAFTS = auto()
    ANOTHER_SEQUENCE = auto()


class _Wanted(Enum):
    """The requested results of a pass's rows."""

    EVERYTHING = auto()
    OF_THE_PROBE = auto()
    OF_ONE_ROW = auto()
    REDUCED = auto()
    BEST_ALONE = auto()


def combined(probe: Probe, shape: VerifierShape, longest: int, rng: np.random.Generator) -> InvarianceCase:
    """The probe's tokens in order, with every other circumstance drawn for each pass.

    Sizes, neighbours and wants come in shuffled rounds, so that none is left to chance where there are as
    many passes. At most `longest` rows of one sequence share a pass.
    """
    return InvarianceCase("everything else changed at once", tuple(_Plan(probe, shape, longest, rng)))


def reduced_need(number: int, vocabulary: int, rng: np.random.Generator) -> LogitsRequest:
    """Each kind of need but all logits, in turn."""
    chosen = tuple(int(token) for token in rng.integers(vocabulary, size=LIKELIEST))
    return (LogitsRequest(best=True), LogitsRequest(top=LIKELIEST), LogitsRequest(chosen=chosen))[number % 3]


class _Plan:
    """Draws the passes of one case; to be walked once."""

    def __init__(self, probe: Probe, shape: VerifierShape, longest: int, rng: np.random.Generator) -> None:
        self._probe, self._shape, self._rng = probe, shape, rng
        self._sizes = _shuffled(range(1, min(shape.block, longest) + 1), rng)
        beside = [each for each in _Beside if each is not _Beside.ANOTHER_SEQUENCE or shape.sequences > 1]
        self._beside = _shuffled(beside, rng)
        wants = [each for each in _Wanted if each is not _Wanted.BEST_ALONE or shape.finds_best]
        self._wants = _shuffled(wants, rng)
        self._elsewhere = 0
        self._reduced = 0

    def __iter__(self) -> Iterator[CasePass]:
        done, count = 0, len(self._probe.tokens)
        while done < count:
            size = min(next(self._sizes), count - done)
            yield self._pass(done, size)
            done += size

    def _pass(self, done: int, size: int) -> CasePass:
        """The rows from number `done` on in lanes drawn for them, what is beside them, and what is wanted."""
        block, beside = self._shape.block, next(self._beside)
        lanes = self._lanes(size, beside)
        rows: list[CaseRow] = []
        for lane in range(size if beside is _Beside.OWN_PADS else block):
            if lane in lanes:
                rows.append(self._probe.row(done + lanes.index(lane)))
            else:
                rows.append(self._neighbour(beside, done + size + lane - lanes[-1] - 1, lane > lanes[-1]))
        return CasePass(tuple(rows), block, self._wanted(rows))

    def _lanes(self, size: int, beside: _Beside) -> list[int]:
        """Ascending lanes: side by side where something follows them, any otherwise."""
        if beside in (_Beside.WRONG_DRAFTS, _Beside.OWN_PADS):
            free = self._shape.block - size
            first = 0 if beside is _Beside.OWN_PADS else int(self._rng.integers(free + 1))
            return list(range(first, first + size))
        return sorted(int(lane) for lane in self._rng.choice(self._shape.block, size=size, replace=False))

    def _neighbour(self, beside: _Beside, index: int, is_behind: bool) -> CaseRow:
        """A row in a free lane; a wrong draft is in place of token number `index`."""
        if beside is _Beside.ANOTHER_SEQUENCE:
            return self._of_another_sequence()
        if beside is _Beside.WRONG_DRAFTS and is_behind:
            position = self._probe.start + index
            if position < self._shape.context:
                return CaseRow(RowKind.DRAFT, self._other_token(index), position)
        position = int(self._rng.integers(self._probe.start + 1))
        return CaseRow(RowKind.PAD, int(self._rng.integers(self._shape.vocabulary)), position)

    def _of_another_sequence(self) -> CaseRow:
        """The next row of a sequence in the last region, which starts anew at the end of the context."""
        position = self._elsewhere % self._shape.context
        self._elsewhere += 1
        token = int(self._rng.integers(self._shape.vocabulary))
        return CaseRow(RowKind.PROMPT, token, position, self._shape.sequences - 1)

    def _other_token(self, index: int) -> int:
        tokens, vocabulary = self._probe.tokens, self._shape.vocabulary
        right = tokens[index] if index < len(tokens) else 0
        return (right + 1 + int(self._rng.integers(max(1, vocabulary - 1)))) % vocabulary

    def _wanted(self, rows: Sequence[CaseRow]) -> dict[int, LogitsRequest]:
        """Needs by lane."""
        recorded = [lane for lane, row in enumerate(rows) if row.recorded]
        match next(self._wants):
            case _Wanted.EVERYTHING:
                return dict.fromkeys(range(len(rows)), ALL_LOGITS)
            case _Wanted.OF_THE_PROBE:
                return dict.fromkeys(recorded, ALL_LOGITS)
            case _Wanted.OF_ONE_ROW:
                return {int(self._rng.choice(recorded)): ALL_LOGITS}
            case _Wanted.BEST_ALONE:
                return dict.fromkeys(recorded, BEST_LOGIT)
        return {lane: self._next_reduced() for lane in recorded}

    def _next_reduced(self) -> LogitsRequest:
        self._reduced += 1
        return reduced_need(self._reduced, self._shape.vocabulary, self._rng)


def _shuffled(options: Sequence[Choice], rng: np.random.Generator) -> Iterator[Choice]:
    """All options in a drawn order, and again in another, for ever."""
    while True:
        for place in rng.permutation(len(options)):
            yield options[place]
