"""Cases that change all at once what a row must not depend on, by a seeded plan.

A pass of such a case has some of the probe's rows in any of its lanes. Beside them stand pads, wrong drafts,
rows of another sequence, or pads that the verifier makes up, and of some rows no logits are wanted, or only
the likeliest. Where the bits stay the same all the same, none of it matters, and one pass has shown for
several rows what would else take one for each row and each circumstance.
"""

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import TypeVar

import numpy as np

from anespec.runtime.passes import ALL_LOGITS, Need, RowKind, VerifierShape
from anespec.validate.invariance_cases import CasePass, CaseRow, InvarianceCase, Probe

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


def combined(probe: Probe, shape: VerifierShape, longest: int, rng: np.random.Generator) -> InvarianceCase:
    """The probe's tokens in order, with every other circumstance drawn for each pass.

    Sizes, neighbours and wants come in shuffled rounds, so that none is left to chance where there are as
    many passes. At most `longest` rows of one sequence share a pass.
    """
    return InvarianceCase("everything else changed at once", tuple(_Plan(probe, shape, longest, rng)))


def reduced_need(number: int, vocabulary: int, rng: np.random.Generator) -> Need:
    """Each kind of need but all logits, in turn."""
    chosen = tuple(int(token) for token in rng.integers(vocabulary, size=LIKELIEST))
    return (Need(best=True), Need(top=LIKELIEST), Need(chosen=chosen))[number % 3]


class _Plan:
    """Draws the passes of one case; to be walked once."""

    def __init__(self, probe: Probe, shape: VerifierShape, longest: int, rng: np.random.Generator) -> None:
        self._probe, self._shape, self._rng = probe, shape, rng
        self._sizes = _shuffled(range(1, min(shape.block, longest) + 1), rng)
        beside = [each for each in _Beside if each is not _Beside.ANOTHER_SEQUENCE or shape.sequences > 1]
        self._beside = _shuffled(beside, rng)
        self._wants = _shuffled([*_Wanted], rng)
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

    def _wanted(self, rows: Sequence[CaseRow]) -> dict[int, Need]:
        """Needs by lane."""
        recorded = [lane for lane, row in enumerate(rows) if row.recorded]
        match next(self._wants):
            case _Wanted.EVERYTHING:
                return dict.fromkeys(range(len(rows)), ALL_LOGITS)
            case _Wanted.OF_THE_PROBE:
                return dict.fromkeys(recorded, ALL_LOGITS)
            case _Wanted.OF_ONE_ROW:
                return {int(self._rng.choice(recorded)): ALL_LOGITS}
        return {lane: self._next_reduced() for lane in recorded}

    def _next_reduced(self) -> Need:
        self._reduced += 1
        return reduced_need(self._reduced, self._shape.vocabulary, self._rng)


def _shuffled(options: Sequence[Choice], rng: np.random.Generator) -> Iterator[Choice]:
    """All options in a drawn order, and again in another, for ever."""
    while True:
        for place in rng.permutation(len(options)):
            yield options[place]
