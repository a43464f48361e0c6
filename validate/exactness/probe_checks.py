"""The checks of the exactness gate on one probe: all circumstances together, and each alone if bits differ.

The rows of a probe run in blocks, alone, and in cases that change all at once what they must not depend on. A
verifier that gives the same bits in all cases depends on none of these, and needs no further check. Where
bits differ, invariance_checks.py finds which circumstances they depend on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from anespec.manifests.verdicts import Invariance
from anespec.runtime.passes import ALL_LOGITS
from anespec.validate.exactness.bit_comparison import Difference, Recording, compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.effort import Effort
from anespec.validate.exactness.invariance_cases import (
    InvarianceCase,
    Probe,
    combined,
    cut,
    lane_after_lane,
    one_row_a_pass,
    reduced_need,
    speculated,
    wanting,
    with_another_sequence,
    with_made_up_pads,
    with_random_pads,
)
from anespec.validate.exactness.width_checks import WidthFindings, long_probe, measure_widths

# Each check runs the probe in two ways that must agree: the plain way, one row a pass in lane 0 beside
# pads, and a way in which one circumstance differs. In the plain way all logits of every row are wanted,
# and a pass looks at every slot.


class SeparateChecks:
    """The checks of one probe of what a combined case changes at once, each by itself."""

    def __init__(self, runner: CaseRunner, probe: Probe, effort: Effort, rng: np.random.Generator) -> None:
        self.runner, self.probe, self.effort, self.rng = runner, probe, effort, rng
        self.shape = runner.shape
        self.plain = one_row_a_pass(probe, self.shape.block)
        self.runner.prepare(probe)
        self.expected = self._fresh(self.plain)
        self.turning = lane_after_lane(probe, self.shape.block)

    def measure(self, report: Callable[[str], None]) -> Iterator[tuple[Invariance, Difference]]:
        """Each of these invariances with what was found. The runner is left with the probe prepared."""
        checks: Mapping[Invariance, Callable[[], Difference]] = {
            Invariance.LANE: self._lane,
            Invariance.NEIGHBOURS: self._neighbours,
            Invariance.STALE: self._stale,
            Invariance.PARTITION: self._partition,
            Invariance.WANTED: self._wanted,
        }
        for invariance, check in checks.items():
            report(invariance)
            yield invariance, check()

    @cached_property
    def _in_turn(self) -> Recording:
        return self._fresh(self.turning)

    def _fresh(self, case: InvarianceCase, probe: Probe | None = None) -> Recording:
        """Run a case of the probe, or of a part of it, on the past alone, as if no other had run before."""
        self.runner.restore()
        return self.runner.run(case, probe or self.probe)

    def _against_plain(self, cases: Sequence[InvarianceCase], probe: Probe | None = None) -> Difference:
        total = Difference()
        for case in cases:
            total += compare(self.expected, self._fresh(case, probe), case.name)
        return total

    def _lane(self) -> Difference:
        """Every lane; lane 0 once more, so that a verifier that merely wavers is caught too."""
        if not self.effort.thorough:
            return compare(self.expected, self._in_turn, self.turning.name)
        return self._against_plain(
            [one_row_a_pass(self.probe, self.shape.block, lane) for lane in range(self.shape.block)]
        )

    def _neighbours(self) -> Difference:
        """The same lane beside other pads, wrong drafts, or rows of another sequence."""
        vocabulary = self.shape.vocabulary
        drafting = self.probe if self.effort.thorough else self.probe.part(0, 2)
        total = self._against_plain([self._speculated([0], drafting)], drafting) + self._made_up_pads()
        for plain, expected in self._alone():
            cases = [with_random_pads(plain, self.probe, vocabulary, self.rng)]
            if (last := self.shape.sequences - 1) > 0:
                cases.append(with_another_sequence(plain, last, vocabulary, self.rng, self.shape.context))
            for case in cases:
                total += compare(expected, self._fresh(case), case.name)
        if self.shape.sequences > 1:
            self.runner.prepare(self.probe)
        return total

    def _made_up_pads(self) -> Difference:
        """The verifier's pads beside the gate's. Neither are wanted, so that nothing else differs."""
        part = self.probe if self.effort.thorough else self.probe.part(0, 1)
        given = wanting(one_row_a_pass(part, self.shape.block), {0: ALL_LOGITS}, "wanted alone")
        expected, made_up = self._fresh(given, part), with_made_up_pads(given)
        return compare(expected, self._fresh(made_up, part), made_up.name)

    def _alone(self) -> Iterator[tuple[InvarianceCase, Recording]]:
        """Cases of one row a pass that put pads before and after it, and what they leave."""
        if not self.effort.thorough:
            yield self.turning, self._in_turn
            return
        for lane in sorted({0, self.shape.block - 1}):
            plain = one_row_a_pass(self.probe, self.shape.block, lane)
            yield plain, self._fresh(plain)

    def _stale(self) -> Difference:
        """Loud values in every slot that is not visible, and if thorough what rejected drafts left."""
        total = Difference()
        if self.effort.thorough:
            self._fresh(self._speculated([0]))
            self.runner.restore_past(self.probe)
            found = self.runner.run(self.plain, self.probe)
            total += compare(self.expected, found, "after rejected drafts")
        self.runner.restore()
        self.runner.fill_stale(self.probe, self.rng)
        found = self.runner.run(self.plain, self.probe)
        total += compare(self.expected, found, "loud values in stale slots")
        self.runner.prepare(self.probe)
        return total

    def _partition(self) -> Difference:
        """Rows cut into passes evenly, at random, and by speculation."""
        block, probe = self.shape.block, self.probe
        cuts = [[size] for size in range(2, block + 1)]
        if not self.effort.thorough:
            cuts = [[block], list(range(2, block))] if block > 2 else [[block]]
        cases = [cut(probe, sizes, block) for sizes in cuts]
        cases.append(self._speculated([block - 1]))
        for _ in range(self.effort.mixed_cuts):
            cases.append(cut(probe, self._random_sizes(block), block))
            cases.append(self._speculated([size - 1 for size in self._random_sizes(block)]))
        return self._against_plain(cases)

    def _wanted(self) -> Difference:
        """Full passes of a block of which logits of no row, of few, of most, or only what was reduced is
        wanted."""
        width = self.shape.block
        part = self.probe if self.effort.thorough else self.probe.part(0, width)
        most = min(width, self.runner.map.longest_run)
        full = cut(part, [most], width)
        expected = self._fresh(full, part)
        total = Difference()
        for count in sorted({0, 1, most // 2, most - 1}):
            lanes = sorted(int(lane) for lane in self.rng.choice(most, size=count, replace=False))
            case = wanting(full, dict.fromkeys(lanes, ALL_LOGITS), f"logits of lanes {lanes} wanted")
            total += compare(expected, self._fresh(case, part), case.name)
        reduced = wanting(
            full,
            {lane: reduced_need(lane, self.shape.vocabulary, self.rng) for lane in range(most)},
            "likeliest wanted",
        )
        return total + compare(expected, self._fresh(reduced, part), reduced.name)

    def _speculated(self, accepted: Sequence[int], probe: Probe | None = None) -> InvarianceCase:
        """The probe, or a part of it, by drafts, of which so many are right, within the context."""
        shape = self.shape
        return speculated(
            probe or self.probe, accepted, shape.block, shape.vocabulary, self.rng, shape.context
        )

    def _random_sizes(self, limit: int) -> list[int]:
        return [int(size) for size in self.rng.integers(1, limit + 1, size=len(self.probe.tokens))]


KNOWN_ROWS = 32
"""Rows that were run in blocks, which all else is compared with. Kernels that round differently do so in few
rows, so a handful of them would prove nothing."""

TOGETHER = (
    Invariance.LANE,
    Invariance.NEIGHBOURS,
    Invariance.STALE,
    Invariance.PARTITION,
    Invariance.WANTED,
)
"""What a combined case changes at once."""

TOGETHER_NOTE = "lane, neighbours, stale, partition and wanted together"

STEPS = 2
"""Notes that a probe gives where nothing differs."""


class ProbeChecks:
    """The checks of one probe, but for region and span.

    `widths` has what is found of each width, once that is measured, and `together` how many cases changed
    everything at once, 0 where each circumstance had to be tried alone.
    """

    def __init__(self, runner: CaseRunner, probe: Probe, effort: Effort, rng: np.random.Generator) -> None:
        self.runner, self.probe, self.effort, self.rng = runner, probe, effort, rng
        self.shape = runner.shape
        self.long = long_probe(self.shape, probe, KNOWN_ROWS, rng)
        self.widths = WidthFindings()
        self.together = 0
        self.runner.prepare(self.long)

    def measure(
        self, report: Callable[[str], None], refuted: Collection[int] = ()
    ) -> Iterator[tuple[Invariance, Difference]]:
        """Every invariance with what was found; a slot that is not finite at the end counts as stale.

        Widths that are `refuted` already are not run.
        """
        report(TOGETHER_NOTE)
        difference = self._together()
        if difference.equal:
            self.together = self.effort.together
            yield from ((invariance, difference) for invariance in TOGETHER)
        else:
            yield from self._apart(report, difference)
        report(Invariance.WIDTH)
        if self.shape.widths != (self.shape.block,):
            self.widths = measure_widths(self.runner, self.long, self._known, self.effort, self.rng, refuted)
            yield Invariance.WANTED, self.widths.wanted
        yield Invariance.WIDTH, sum(self.widths.by_width.values(), Difference())
        yield Invariance.STALE, not_finite(self.runner, "afterwards")

    def _together(self) -> Difference:
        """Compare rows alone in lane 0, and cases that change everything at once, with rows in blocks."""
        alone = self.long.part(0, min(self.effort.alone, len(self.probe.tokens)))
        plain = one_row_a_pass(alone, self.shape.block)
        expected = self._known
        self.runner.restore()
        total = compare(expected, self.runner.run(plain, alone), plain.name)
        for number in range(self.effort.together):
            case = combined(self._first, self.shape, self.runner.map.longest_run, self.rng)
            state = self._lay_state(number)
            found = self.runner.run(case, self._first)
            total += compare(expected, found, f"{case.name}, {state}")
        return total

    def _lay_state(self, number: int) -> str:
        """What a case finds in slots that it does not see: loud values last, before that what the case before
        it left. The name of it."""
        if number == self.effort.together - 1:
            self.runner.restore()
            self.runner.fill_stale(self._first, self.rng)
            return "loud values in stale slots"
        if number:
            self.runner.restore_past(self._first)
            return "on what another left"
        self.runner.restore()
        return "on the past alone"

    def _apart(
        self, report: Callable[[str], None], together: Difference
    ) -> Iterator[tuple[Invariance, Difference]]:
        """Each circumstance alone; where none of them differs so, none is proven all the same."""
        separate = list(SeparateChecks(self.runner, self.probe, self.effort, self.rng).measure(report))
        if all(difference.unequal == 0 for _, difference in separate):
            separate += [(invariance, together) for invariance in TOGETHER]
        yield from separate
        self.runner.prepare(self.long)

    @cached_property
    def _known(self) -> Recording:
        """What blocks leave of the first tokens of the long probe, which is prepared."""
        self.runner.restore()
        return self.runner.run(self._blocks, self._first)

    @property
    def _first(self) -> Probe:
        return self.long.part(0, KNOWN_ROWS)

    @property
    def _blocks(self) -> InvarianceCase:
        most = min(self.shape.block, self.runner.map.longest_run)
        return cut(self._first, [most], self.shape.block)


def not_finite(runner: CaseRunner, when: str) -> Difference:
    """A slot that holds what is not finite, as a difference; none where all are."""
    problem = runner.not_finite_slot()
    return Difference(1, 1, 0.0, f"{when} {problem}") if problem else Difference()
