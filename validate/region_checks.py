"""Whether a sequence may live in any region: what it takes to serve several at a time."""

from collections.abc import Sequence

from anespec.validate.bit_comparison import Difference, compare
from anespec.validate.case_runner import CaseRunner
from anespec.validate.effort import Effort
from anespec.validate.invariance_cases import Probe, cut, in_region

LEAST_ROWS, REGION_ROWS = 32, 64
"""Rows that are compared, more where passes may be as wide. A base changes where kernels split their sums,
which few rows show: where the last of four regions reached over slot 1024, 8 % of them did."""


def measure_regions(
    runner: CaseRunner, probe: Probe, widths: Sequence[int], effort: Effort, number: int = 0
) -> Difference:
    """The same sequence at every other base, on a past that was copied there, in one of them computed there.

    It ends where the region ends, so that its past reaches over all of it; if thorough a probe in the middle
    of the context stays there. It runs in passes of the widest of `widths`, those that proved equal, up to
    REGION_ROWS.
    `number` is the probe's, by which the regions take turns. The runner is left with another past.
    """
    shape = runner.shape
    if shape.sequences == 1:
        return Difference()
    width = max(width for width in widths if width <= max(REGION_ROWS, shape.block))
    count = min(max(width, LEAST_ROWS), len(probe.tokens))
    in_the_middle = probe.start > 0 and probe.positions.stop < shape.context
    start = probe.start if effort.thorough and in_the_middle else shape.context - count
    placed = Probe((probe.past or probe.tokens)[:start], start, probe.tokens[:count])
    return _at_every_base(runner, placed, width, 1 + number % (shape.sequences - 1))


def _at_every_base(runner: CaseRunner, probe: Probe, width: int, computed_in: int) -> Difference:
    """The probe in every region; its past is computed in the first and in one other."""
    total = Difference()
    plain = cut(probe, [min(width, runner.map.longest_run)], width)
    runner.prepare(probe)
    expected = runner.run(plain, probe)
    for region in range(1, runner.shape.sequences):
        case = in_region(plain, region)
        if region == computed_in:
            runner.lay_past(probe, region)
        else:
            runner.copy_past(probe, 0, region)
        name = f"{case.name}, its past {'computed there' if region == computed_in else 'copied there'}"
        total += compare(expected, runner.run(case, probe, region), name)
    return total
