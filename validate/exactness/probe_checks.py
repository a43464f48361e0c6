"""The checks of the exactness gate on one probe: all circumstances together, and each alone if bits differ.

The rows of a probe run in blocks, alone, and in cases that change all at once what they must not depend on. A
verifier that gives the same bits in all cases depends on none of these, and needs no further check. Where
bits differ, invariance_checks.py finds which circumstances they depend on.
"""

from collections.abc import Callable, Collection, Iterator
from functools import cached_property

import numpy as np

from anespec.manifests.verdicts import Invariance
from anespec.validate.exactness.bit_comparison import Difference, Recording, compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.effort import Effort
from anespec.validate.exactness.invariance_cases import InvarianceCase, Probe, combined, cut, one_row_a_pass
from anespec.validate.exactness.invariance_checks import SeparateChecks
from anespec.validate.exactness.width_checks import WidthFindings, long_probe, measure_widths

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
