"""The checks of one probe: all circumstances together, and each alone if bits differ.

The rows of a probe run in blocks, alone, and in cases that change everything at once that they must not
depend on. If all cases give the same bits, the rows depend on none of it, and no further check is needed. If
bits differ, SeparateChecks finds which circumstances they depend on.
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


class SeparateChecks:
    """The checks of one probe that change one circumstance each, where a combined case changes all.

    Each check runs the probe in two ways that must agree: the plain way, and a way in which one circumstance
    differs. The plain way has one row a pass in lane 0 beside pads, requests all logits of every row, and
    reads every slot.
    """

    def __init__(self, runner: CaseRunner, probe: Probe, effort: Effort, rng: np.random.Generator) -> None:
        self.runner, self.probe, self.effort, self.rng = runner, probe, effort, rng
        self.shape = runner.shape
        self.plain = one_row_a_pass(probe, self.shape.block)
        self.runner.prepare(probe)
        self.expected = self._fresh(self.plain)
        self.turning = lane_after_lane(probe, self.shape.block)

    def measure(self, report: Callable[[str], None]) -> Iterator[tuple[Invariance, Difference]]:
        """Yield each of these invariances with its difference. The runner is left with the probe prepared."""
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
        """Restore the past, and run a case of the probe or of a part of it."""
        self.runner.restore()
        return self.runner.run(case, probe or self.probe)

    def _against_plain(self, cases: Sequence[InvarianceCase], probe: Probe | None = None) -> Difference:
        total = Difference()
        for case in cases:
            total += compare(self.expected, self._fresh(case, probe), case.name)
        return total

    def _lane(self) -> Difference:
        """Compare every lane; lane 0 runs again, which finds a verifier whose results vary between runs."""
        if not self.effort.thorough:
            return compare(self.expected, self._in_turn, self.turning.name)
        return self._against_plain(
            [one_row_a_pass(self.probe, self.shape.block, lane) for lane in range(self.shape.block)]
        )

    def _neighbours(self) -> Difference:
        """Compare the same lane beside other pads, wrong drafts, or rows of another sequence."""
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
        """Compare the verifier's pads with the gate's.

        No results of pads are requested, so that nothing else differs.
        """
        part = self.probe if self.effort.thorough else self.probe.part(0, 1)
        given = wanting(one_row_a_pass(part, self.shape.block), {0: ALL_LOGITS}, "wanted alone")
        expected, made_up = self._fresh(given, part), with_made_up_pads(given)
        return compare(expected, self._fresh(made_up, part), made_up.name)

    def _alone(self) -> Iterator[tuple[InvarianceCase, Recording]]:
        """Yield cases of one row a pass, with pads before or after the row, and their recordings."""
        if not self.effort.thorough:
            yield self.turning, self._in_turn
            return
        for lane in sorted({0, self.shape.block - 1}):
            plain = one_row_a_pass(self.probe, self.shape.block, lane)
            yield plain, self._fresh(plain)

    def _stale(self) -> Difference:
        """Compare with loud values in slots that are not visible and, if thorough, with rejected drafts."""
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
        """Compare rows cut into passes evenly, at random, and by speculation."""
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
        """Compare full passes with the logits of no row, of some rows, and with reduced results only."""
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
            "reduced results wanted",
        )
        return total + compare(expected, self._fresh(reduced, part), reduced.name)

    def _speculated(self, accepted: Sequence[int], probe: Probe | None = None) -> InvarianceCase:
        """Return the probe, or a part of it, in passes with drafts of which `accepted` are right."""
        shape = self.shape
        return speculated(
            probe or self.probe, accepted, shape.block, shape.vocabulary, self.rng, shape.context
        )

    def _random_sizes(self, limit: int) -> list[int]:
        return [int(size) for size in self.rng.integers(1, limit + 1, size=len(self.probe.tokens))]


KNOWN_ROWS = 32
"""The number of rows run in blocks, with which everything else is compared. Kernels that round differently
do so in few rows, so a handful would prove nothing."""

TOGETHER = (
    Invariance.LANE,
    Invariance.NEIGHBOURS,
    Invariance.STALE,
    Invariance.PARTITION,
    Invariance.WANTED,
)
"""The invariances that a combined case tests at once."""

TOGETHER_NOTE = "lane, neighbours, stale, partition and wanted together"

STEPS = 2
"""The progress notes of a probe if nothing differs."""


class ProbeChecks:
    """The checks of one probe, except those of region and span.

    `widths` has the differences by width, once measured. `together` is how many cases changed everything at
    once; 0 if each circumstance was checked alone.
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
        """Yield every invariance with its difference; a slot that is not finite at the end counts as stale.

        Widths that are already `refuted` are not run.
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
        """Compare rows in blocks with rows alone in lane 0, and with cases that change everything at once."""
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
        """Prepare the slots that the rows of a case do not see, and return a name of their contents.

        The last case gets loud values; others after the first keep what the case before them left.
        """
        if number == self.effort.together - 1:
            self.runner.restore()
            self.runner.fill_stale(self._first, self.rng)
            return "loud values in stale slots"
        if number:
            self.runner.restore_past(self._first)
            return "on what another case left"
        self.runner.restore()
        return "on the past alone"

    def _apart(
        self, report: Callable[[str], None], together: Difference
    ) -> Iterator[tuple[Invariance, Difference]]:
        """Check each circumstance alone; if none of them differs, the combined difference counts for all."""
        separate = list(SeparateChecks(self.runner, self.probe, self.effort, self.rng).measure(report))
        if all(difference.unequal == 0 for _, difference in separate):
            separate += [(invariance, together) for invariance in TOGETHER]
        yield from separate
        self.runner.prepare(self.long)

    @cached_property
    def _known(self) -> Recording:
        """Return the recording of the first tokens of the long probe, run in blocks."""
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
    """Return a slot with a value that is not finite, as a difference; an empty one if there is none."""
    problem = runner.not_finite_slot()
    return Difference(1, 1, 0.0, f"{when} {problem}") if problem else Difference()
