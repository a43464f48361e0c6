"""Whether a sequence may live in any region: what it takes to serve several at a time."""

from collections.abc import Sequence

from anespec.validate.bit_comparison import Difference, compare
from anespec.validate.case_runner import CaseRunner
from anespec.validate.effort import Effort
from anespec.validate.invariance_cases import Probe, cut, in_region

LEAST_ROWS, REGION_ROWS = 32, 64
"""Rows that are compared, more where passes may be as wide. A base changes where kernels split their sums,
which few rows show: where the last of four regions reached over slot 1024, 8 % of them did."""

COPIED_BLOCKS = 2
"""Blocks of these, or one wider pass, that go on from a copied past."""


def measure_regions(runner: CaseRunner, probe: Probe, widths: Sequence[int], effort: Effort) -> Difference:
    """The same sequence at every other base: computed there, and continued from a copy.

    It ends where the region ends, so that its past reaches over all of it; if thorough it also stands where
    the probe does. It runs in passes of the widest of `widths`, those that proved equal, up to REGION_ROWS.
    The runner is left with another past.
    """
    shape, total = runner.shape, Difference()
    if shape.sequences == 1:
        return total
    width = max(width for width in widths if width <= max(REGION_ROWS, shape.block))
    count = min(max(width, LEAST_ROWS), len(probe.tokens))
    starts = [shape.context - count, min(probe.start, shape.context - count)]
    for start in dict.fromkeys(starts) if effort.thorough else starts[:1]:
        placed = Probe((probe.past or probe.tokens)[:start], start, probe.tokens[:count])
        total += _at_every_base(runner, placed, width)
    return total


def _at_every_base(runner: CaseRunner, probe: Probe, width: int) -> Difference:
    total, shape = Difference(), runner.shape
    plain = cut(probe, [min(width, runner.map.longest_run)], width)
    copied = probe.part(0, max(width, COPIED_BLOCKS * shape.block))
    runner.prepare(probe)
    expected = runner.run(plain, probe)
    for region in range(1, shape.sequences):
        case = in_region(plain, region)
        runner.prepare(probe, region)
        total += compare(expected, runner.run(case, probe, region), case.name)
        case = in_region(cut(copied, [min(width, runner.map.longest_run)], width), region)
        runner.prepare(copied)
        runner.copy_past(copied, 0, region)
        found = runner.run(case, copied, region)
        total += compare(expected, found, f"{case.name}, after a copied past")
    return total
