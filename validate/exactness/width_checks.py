"""Check the numbers of rows that a pass may have, other than the block's: every width that the engine may
run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, VerifierShape
from anespec.validate.exactness.bit_comparison import Difference, Recording, compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.effort import Effort
from anespec.validate.exactness.invariance_cases import Probe, cut, wanting, with_made_up_pads

MOST_PASSES = 8
"""What the quick form spends on the rows that a wide pass is compared with, beyond those known already. Where
narrower ones differ that takes more of them, and a width that would need more is left unproven."""

WIDE_ROWS = 48
"""Rows that are looked at of each wide width, in the quick form if MOST_PASSES reach: one pass of eight rows
would be little to tell that drafts may run in it."""

NARROW_PASSES = 4
"""Of each width below the block's in the quick form, and before all rows in the full one: kernels that differ
round few rows differently."""


@dataclass(frozen=True)
class WidthFindings:
    """What differs from passes as wide as a block, by width; one that was not compared is absent.

    `wanted` is what differs in wide passes where not all logits are wanted, and only there.
    """

    by_width: Mapping[int, Difference] = field(default_factory=dict)
    wanted: Difference = field(default_factory=Difference)


def long_probe(shape: VerifierShape, probe: Probe, rows: int, rng: np.random.Generator) -> Probe:
    """The probe with tokens for so many rows, and every lane of the widest pass, as the context allows."""
    count = min(max(shape.widths[-1], rows), shape.context)
    more = rng.integers(shape.vocabulary, size=count)
    tokens = (*probe.tokens, *(int(token) for token in more))[:count]
    return Probe(probe.past, min(probe.start, shape.context - count), tokens)


def measure_widths(
    runner: CaseRunner,
    probe: Probe,
    known: Recording,
    effort: Effort,
    rng: np.random.Generator,
    refuted: Collection[int] = (),
) -> WidthFindings:
    """Compare passes of every other width with what is `known` from blocks of the probe's first tokens.

    The probe is prepared. Widths that are `refuted` are left out, and of others nothing is run any more once
    they differ.
    """
    narrow = [width for width in runner.shape.widths if width < runner.shape.block and width not in refuted]
    found = {width: _narrow(runner, probe, known, width, effort, rng) for width in narrow}
    wide = _WideWidths(runner, probe, known, effort, rng)
    for width in runner.shape.wide_widths[1:]:
        if width not in refuted and not wide.measure(width):
            break
    found |= wide.found
    for width in found if runner.shape.finds_best else ():
        if found[width].equal:
            found[width] += _best_alone(runner, probe, known, width)
    return WidthFindings(found, wide.wanted)


def _best_alone(runner: CaseRunner, probe: Probe, known: Recording, width: int) -> Difference:
    """Passes of the rows that are known, of which nothing but the best tokens is wanted."""
    most = min(width, runner.map.longest_run)
    part = probe.part(0, min(len(known.rows), max(most, NARROW_PASSES * width)))
    case = wanting(cut(part, [most], width), dict.fromkeys(range(width), BEST_LOGIT), "best tokens alone")
    runner.restore()
    return compare(known, runner.run(case, part), case.name)


def _narrow(
    runner: CaseRunner,
    probe: Probe,
    known: Recording,
    width: int,
    effort: Effort,
    rng: np.random.Generator,
) -> Difference:
    """Full passes and ones with pads, of fewer rows than a block; if thorough over all rows that are known,
    cut at random behind the first few."""
    sizes = [width, max(1, width - 1)]
    end = min(len(known.rows), NARROW_PASSES // 2 * sum(sizes))
    part = probe.part(0, end)
    case = cut(part, sizes, width)
    runner.restore()
    total = compare(known, runner.run(case, part), case.name)
    rest = probe.part(end, len(known.rows))
    if effort.thorough and rest.tokens and not total.unequal:
        case = cut(rest, _random_sizes(rng, rest, width), width)
        total += compare(known, runner.run(case, rest), case.name)
    return total


class _WideWidths:
    """Passes of more rows than a block, one width after the other, beside what is known of their rows.

    Rows that are not known yet are found by passes of the widest that proved equal, and the last of them by
    a block.
    """

    def __init__(
        self, runner: CaseRunner, probe: Probe, known: Recording, effort: Effort, rng: np.random.Generator
    ) -> None:
        self._runner, self._probe, self._effort, self._rng = runner, probe, effort, rng
        self._block, self._longest = runner.shape.block, runner.map.longest_run
        self._expected, self._sound = known, self._block
        self.found: dict[int, Difference] = {}
        self.wanted = Difference()

    def measure(self, width: int) -> bool:
        """Compare full passes of a width, and if thorough one with pads; False where that takes too many."""
        known = len(self._expected.rows)
        reached = known + MOST_PASSES * self._sound
        whole = self._probe.part(0, max(width, min(WIDE_ROWS, reached) // width * width))
        missing = len(whole.tokens) - known
        if missing > MOST_PASSES * self._sound and not self._effort.thorough:
            return False
        self.found[width] = self._full(width, whole)
        if self.found[width].equal:
            self._sound = width
            if self._effort.thorough:
                self._filled_up(width)
        return True

    def _full(self, width: int, whole: Probe) -> Difference:
        """Full passes: the first beside the rows that are known, and where those agree all of them."""
        runner, first = self._runner, whole.part(0, width)
        full = cut(whole, [min(width, self._longest)], width)
        runner.restore()
        recorded = runner.run(cut(first, [min(width, self._longest)], width), first)
        difference = compare(self._expected, recorded, full.name)
        if difference.unequal:
            return difference
        if (rest := whole.part(width, len(whole.tokens))).tokens:
            more = runner.run(cut(rest, [min(width, self._longest)], width), rest)
            recorded = recorded.followed_by(more)
        last = Difference()
        known = len(self._expected.rows)
        if len(whole.tokens) > known:
            end = whole.part(max(0, len(whole.tokens) - self._block), len(whole.tokens))
            again = runner.run(cut(end, [self._block], self._block), end)
            last = compare(again, recorded, f"{full.name}, its last rows")
            unknown = whole.part(known, len(whole.tokens))
            runner.restore()
            runner.lay(self._expected)
            more = runner.run(cut(unknown, [min(self._sound, self._longest)], self._sound), unknown)
            self._expected = self._expected.followed_by(more)
        return compare(self._expected, recorded, full.name) + last

    def _filled_up(self, width: int) -> None:
        """One pass of fewer rows, which the verifier fills up with pads, where some logits are not wanted.

        What differs counts for the width, unless nothing does with the gate's own pads and all logits wanted.
        """
        count = int(self._rng.integers(1, min(width, self._longest, len(self._probe.tokens)) + 1))
        part = self._probe.part(0, count)
        lanes = self._rng.choice(count, size=(count + 1) // 2, replace=False)
        plain = cut(part, [count], width)
        some = wanting(plain, {int(lane): ALL_LOGITS for lane in lanes}, "not all wanted")
        self._runner.restore()
        difference = compare(self._expected, self._runner.run(with_made_up_pads(some), part), some.name)
        if difference.unequal:
            self._runner.restore()
            by_width = compare(self._expected, self._runner.run(plain, part), plain.name)
            self.found[width] += by_width
            self.wanted += Difference() if by_width.unequal else difference
        else:
            self.found[width] += difference
            self.wanted += difference


def _random_sizes(rng: np.random.Generator, probe: Probe, limit: int) -> list[int]:
    return [int(size) for size in rng.integers(1, limit + 1, size=len(probe.tokens))]
