"""The ways in which the exactness gate runs the same tokens; all of them must give the same bits.

A *probe* gives the tokens at certain positions. A *case* defines the passes, the lanes, the other rows, the
requested results and the span. Every case of a probe must leave the same bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

import numpy as np

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
from anespec.runtime.spans import least_spans
from anespec.system.formatting import counted


@dataclass(frozen=True)
class CaseRow:
    """One lane of a planned pass: a row that has no slots yet.

    `recorded` is False for rows whose logits are not compared: pads, wrong drafts, other sequences. A pad has
    a `position` only to read that position's slot.
    """

    kind: RowKind
    token: int
    position: int
    region: int = 0
    recorded: bool = False

    def row(self, region_map: SlotMapping) -> Row:
        """Return the row with its slots; a pad writes no slot and sees the one of its position."""
        slots = region_map.slots(self.region, self.position)
        if self.kind is RowKind.PAD:
            slots = tuple(_read_only(own.home or 0) for own in slots)
        return Row(self.kind, self.token, self.position, slots)


def _read_only(slot: int) -> RowSlots:
    return RowSlots(None, (range(slot, slot + 1),))


@dataclass(frozen=True)
class CasePass:
    """The rows of the first lanes of a pass; the verifier adds pads for the rest.

    `wanted` has the requested results by lane; None requests all logits of every row. `spans` are as in
    PassPlan; None spans every slot.
    """

    rows: tuple[CaseRow, ...]
    width: int
    wanted: Mapping[int, LogitsRequest] | None = None
    spans: tuple[int, ...] | None = None

    def plan(self, shape: VerifierShape, region_map: SlotMapping) -> PassPlan:
        """Return the pass for a verifier of that shape."""
        rows = tuple(planned.row(region_map) for planned in self.rows)
        spans = self.spans or shape.whole_spans
        if shape.side_by_side:
            # Pads write too, perhaps beyond the span that the rows see.
            spans = tuple(map(max, spans, least_spans(rows, self.width, shape)))
        return PassPlan(rows, self.width, spans, self.needs)

    @property
    def needs(self) -> Mapping[int, LogitsRequest]:
        """Return the requested results by lane."""
        return dict.fromkeys(range(len(self.rows)), ALL_LOGITS) if self.wanted is None else self.wanted


@dataclass(frozen=True)
class Probe:
    """`tokens` at positions `start` and on. The past before them is computed once.

    The past is the K/V of `past`, run through the model, repeated up to `start`.
    """

    past: tuple[int, ...]
    start: int
    tokens: tuple[int, ...]

    @property
    def positions(self) -> range:
        """Return the positions that every case of this probe visits."""
        return range(self.start, self.start + len(self.tokens))

    def row(self, index: int, kind: RowKind = RowKind.PROMPT) -> CaseRow:
        """Return the row of token number `index`."""
        return CaseRow(kind, self.tokens[index], self.start + index, recorded=True)

    def part(self, first: int, end: int) -> "Probe":
        """Return the tokens first..end-1 at their positions; `end` may be beyond the last token."""
        return replace(self, start=self.start + first, tokens=self.tokens[first:end])


@dataclass(frozen=True)
class InvarianceCase:
    """A named way to run a probe."""

    name: str
    passes: tuple[CasePass, ...]


def side_by_side(planned: CasePass, region_map: SlotMapping) -> Iterator[CasePass]:
    """Yield a pass as the passes that a verifier runs if it writes rows side by side (see VerifierShape).

    Each of them has the rows of one sequence from lane 0 on, then the pads of the planned pass. So the lane
    of a row is the number of rows before it, and it changes when passes are cut in another way.
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
    """Return a pass of `width` lanes with `rows` from `lane` on, and pads that see the first row's slot."""
    pad = CaseRow(RowKind.PAD, 0, rows[0].position, rows[0].region)
    after = width - lane - len(rows)
    return CasePass((*(pad,) * lane, *rows, *(pad,) * after), width)


def one_row_a_pass(probe: Probe, width: int, lane: int = 0) -> InvarianceCase:
    """Return a case that runs each token alone in its pass, in one lane, with pads."""
    count = len(probe.tokens)
    passes = tuple(padded([probe.row(i, RowKind.CARRY)], width, lane) for i in range(count))
    return InvarianceCase(f"one row a pass in lane {lane} of {width}", passes)


def lane_after_lane(probe: Probe, width: int) -> InvarianceCase:
    """Return a case that runs each token alone in its pass; the lanes take turns, from lane 1 on."""
    count = len(probe.tokens)
    passes = tuple(padded([probe.row(i, RowKind.CARRY)], width, (i + 1) % width) for i in range(count))
    return InvarianceCase(f"one row a pass in lanes 1, 2 and on of {width}", passes)


def cut(probe: Probe, sizes: Sequence[int], width: int) -> InvarianceCase:
    """Return the tokens cut into passes of `sizes` rows (repeated as needed), filled up with pads."""
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
    """Return a case of passes with the last token's row and drafts.

    The first `accepted` drafts of a pass are right; `accepted` is repeated as needed. A wrong draft is any
    token but the right one. Nothing is drafted past the end of a `context`; pads fill those lanes.
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
    """Return the same rows in the same lanes beside pads of other tokens that see other slots."""

    def other(row: CaseRow) -> CaseRow:
        if row.kind is not RowKind.PAD:
            return row
        position = int(rng.integers(probe.start + 1))
        return replace(row, token=int(rng.integers(vocabulary)), position=position)

    return _each_row(case, f"{case.name}, other pads", other)


def with_made_up_pads(case: InvarianceCase) -> InvarianceCase:
    """Return the same case without the pads behind the last row, so that the verifier adds its own."""
    passes = []
    for planned in case.passes:
        last = max(lane for lane, row in enumerate(planned.rows) if row.kind is not RowKind.PAD)
        passes.append(replace(planned, rows=planned.rows[: last + 1]))
    return InvarianceCase(f"{case.name}, the verifier's own pads", tuple(passes))


def with_another_sequence(
    case: InvarianceCase, region: int, vocabulary: int, rng: np.random.Generator, context: int | None = None
) -> InvarianceCase:
    """Return the case with every pad replaced by a row of a sequence in another region.

    If the next pass would take that sequence past the end of a `context`, another one starts there.
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
    """Return the same case in another region."""
    return _each_row(case, f"{case.name} in region {region}", lambda row: replace(row, region=region))


def wanting(case: InvarianceCase, needs: Mapping[int, LogitsRequest], name: str) -> InvarianceCase:
    """Return the same case with only `needs`, by lane, requested for the recorded rows."""
    passes = []
    for planned in case.passes:
        wanted = {lane: need for lane, need in needs.items() if lane < len(planned.rows)}
        wanted = {lane: need for lane, need in wanted.items() if planned.rows[lane].recorded}
        passes.append(replace(planned, wanted=wanted))
    return InvarianceCase(f"{case.name}, {name}", tuple(passes))


def at_spans(case: InvarianceCase, spans: tuple[int, ...]) -> InvarianceCase:
    """Return the same case in passes that read that many slots of each pool."""
    passes = tuple(replace(planned, spans=spans) for planned in case.passes)
    return InvarianceCase(f"{case.name}, spans of {'+'.join(map(str, spans))} slots", passes)


def _each_row(case: InvarianceCase, name: str, change: Callable[[CaseRow], CaseRow]) -> InvarianceCase:
    passes = tuple(replace(planned, rows=tuple(map(change, planned.rows))) for planned in case.passes)
    return InvarianceCase(name, passes)


# Combined cases change everything that a row must not depend on at once, by a seeded plan.
#
# A pass of such a case has some of the probe's rows in any lanes. The other lanes hold pads, wrong drafts,
# rows of another sequence, or pads that the verifier adds. For some rows no logits are requested, or only the
# top ones. If the bits stay the same, a row depends on none of this, and one pass has tested several rows;
# otherwise each row and each circumstance would need a pass of its own.

TOP_LOGITS = 5
"""How many top logits a check requests."""

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
    """Return a case with the probe's tokens in order and all other circumstances drawn for each pass.

    Sizes, neighbours and requests come in shuffled rounds, so that each occurs if there are enough passes. At
    most `longest` rows of one sequence share a pass.
    """
    return InvarianceCase("everything else changed at once", tuple(_Plan(probe, shape, longest, rng)))


def reduced_need(number: int, vocabulary: int, rng: np.random.Generator) -> LogitsRequest:
    """Return each kind of request but all logits, in turn."""
    chosen = tuple(int(token) for token in rng.integers(vocabulary, size=TOP_LOGITS))
    return (LogitsRequest(best=True), LogitsRequest(top=TOP_LOGITS), LogitsRequest(chosen=chosen))[number % 3]


class _Plan:
    """Draws the passes of one case; it can be iterated once."""

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
        """Return a pass with the rows from number `done` on, their neighbours, and the requests."""
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
        """Return ascending lanes: consecutive ones if drafts or the verifier's pads follow, else any."""
        if beside in (_Beside.WRONG_DRAFTS, _Beside.OWN_PADS):
            free = self._shape.block - size
            first = 0 if beside is _Beside.OWN_PADS else int(self._rng.integers(free + 1))
            return list(range(first, first + size))
        return sorted(int(lane) for lane in self._rng.choice(self._shape.block, size=size, replace=False))

    def _neighbour(self, beside: _Beside, index: int, is_behind: bool) -> CaseRow:
        """Return a row for a free lane; a wrong draft takes the position of token number `index`."""
        if beside is _Beside.ANOTHER_SEQUENCE:
            return self._of_another_sequence()
        if beside is _Beside.WRONG_DRAFTS and is_behind:
            position = self._probe.start + index
            if position < self._shape.context:
                return CaseRow(RowKind.DRAFT, self._other_token(index), position)
        position = int(self._rng.integers(self._probe.start + 1))
        return CaseRow(RowKind.PAD, int(self._rng.integers(self._shape.vocabulary)), position)

    def _of_another_sequence(self) -> CaseRow:
        """Return the next row of a sequence in the last region, which restarts at the end of the context."""
        position = self._elsewhere % self._shape.context
        self._elsewhere += 1
        token = int(self._rng.integers(self._shape.vocabulary))
        return CaseRow(RowKind.PROMPT, token, position, self._shape.sequences - 1)

    def _other_token(self, index: int) -> int:
        tokens, vocabulary = self._probe.tokens, self._shape.vocabulary
        right = tokens[index] if index < len(tokens) else 0
        return (right + 1 + int(self._rng.integers(max(1, vocabulary - 1)))) % vocabulary

    def _wanted(self, rows: Sequence[CaseRow]) -> dict[int, LogitsRequest]:
        """Return the requests by lane."""
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
    """Yield all options in random order, again and again."""
    while True:
        for place in rng.permutation(len(options)):
            yield options[place]
