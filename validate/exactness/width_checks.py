"""Check every number of rows that a pass may have, other than the block's."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, VerifierShape
from anespec.validate.exactness.bit_comparison import Difference, Recording, compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.effort import Effort
from anespec.validate.exactness.invariance_cases import Probe, cut, wanting, with_made_up_pads

MAX_PASSES = 8
"""The most passes that the quick form spends on further rows to compare a wide pass with. A width that
would need more, since narrower ones differ, stays unproven."""

WIDE_ROWS = 48
"""The number of rows compared of each wide width, in the quick form if MAX_PASSES suffice. One pass of
eight rows would be too little evidence for running drafts in it."""

NARROW_PASSES = 4
"""The passes of each width below the block's in the quick form, and before all further rows in the full
one. Kernels that differ round few rows differently."""


@dataclass(frozen=True)
class WidthFindings:
    """The differences from passes as wide as a block, by width; a width that was not compared is absent.

    `wanted` are the differences of wide passes that occur only if not all logits are requested.
    """

    by_width: Mapping[int, Difference] = field(default_factory=dict)
    wanted: Difference = field(default_factory=Difference)


def long_probe(shape: VerifierShape, probe: Probe, rows: int, rng: np.random.Generator) -> Probe:
    """Return the probe with tokens for `rows` rows and for the widest pass, as the context allows."""
    count = min(max(shape.widths[-1], rows), shape.context)
    more = rng.integers(shape.vocabulary, size=count)
    tokens = (*probe.tokens, *(int(token) for token in more))[:count]
    start = min(probe.start, shape.context - count)
    if shape.chunk is not None and start >= shape.chunk:
        # Its first chunk ends after as many rows as the probe's.
        start -= (start - probe.start) % shape.chunk
    return Probe(probe.past, start, tokens)


def measure_widths(
    runner: CaseRunner,
    probe: Probe,
    known: Recording,
    effort: Effort,
    rng: np.random.Generator,
    refuted: Collection[int] = (),
) -> WidthFindings:
    """Compare passes of every other width with `known`, the recording of the probe's first tokens in blocks.

    The probe is prepared. Widths that are `refuted` are not run, and a width is no longer run once it
    differs.
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
    """Compare passes of the known rows of which only the best tokens are requested."""
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
    """Compare full and padded passes of fewer rows than a block.

    If thorough, all known rows run, cut at random after the first few.
    """
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
    """The checks of passes of more rows than a block, one width after another.

    Rows that are not known yet are computed by passes of the widest proven width, and the last of them by a
    block.
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
        """Compare full passes of a width and, if thorough, a padded one.

        Returns False without running them if that takes too many passes.
        """
        known = len(self._expected.rows)
        reached = known + MAX_PASSES * self._sound
        whole = self._probe.part(0, max(width, min(WIDE_ROWS, reached) // width * width))
        missing = len(whole.tokens) - known
        if missing > MAX_PASSES * self._sound and not self._effort.thorough:
            return False
        self.found[width] = self._full(width, whole)
        if self.found[width].equal:
            self._sound = width
            if self._effort.thorough:
                self._filled_up(width)
        return True

    def _full(self, width: int, whole: Probe) -> Difference:
        """Compare full passes: first the known rows, and if they agree all rows."""
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
            runner.lay(self._expected, unknown.start)
            more = runner.run(cut(unknown, [min(self._sound, self._longest)], self._sound), unknown)
            self._expected = self._expected.followed_by(more)
        return compare(self._expected, recorded, full.name) + last

    def _filled_up(self, width: int) -> None:
        """Compare a pass that the verifier pads, with some logits not requested.

        A difference counts for the width, unless there is none with the gate's own pads and all logits
        requested.
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
