"""Which numbers of rows a pass may have, other than the block's: every width that the engine may run."""

from collections.abc import Mapping

import numpy as np

from anespec.validate.bit_comparison import Difference, Recording, compare
from anespec.validate.case_runner import CaseRunner
from anespec.validate.effort import Effort
from anespec.validate.invariance_cases import Probe, cut

MOST_PASSES = 8
"""What the quick form spends on what a wide pass is compared with. Where narrower ones differ, that takes
more of them, and a width that would need more is left unproven."""


def measure_widths(
    runner: CaseRunner, probe: Probe, expected: Recording, effort: Effort, rng: np.random.Generator
) -> Mapping[int, Difference]:
    """What differs from passes as wide as a block, by width; one that was not compared is absent.

    `expected` is what blocks leave of the probe, which is prepared. The runner is left with another past.
    """
    narrow = [width for width in runner.shape.widths if width < runner.shape.block]
    found = {width: _narrow(runner, probe, expected, width, effort, rng) for width in narrow}
    if len(runner.shape.wide_widths) > 1:
        probe = _widened(runner, probe, rng)
        runner.prepare(probe)
        found |= _wide(runner, probe, rng) if effort.thorough else _wide_in_turn(runner, probe)
    return found


def _narrow(
    runner: CaseRunner,
    probe: Probe,
    expected: Recording,
    width: int,
    effort: Effort,
    rng: np.random.Generator,
) -> Difference:
    """Full passes and ones with pads, of fewer rows than a block."""
    sizes = [width, max(1, width - 1)]
    part = probe if effort.thorough else probe.part(0, sum(sizes))
    cases = [cut(part, sizes, width)]
    cases += [cut(part, _random_sizes(rng, part, width), width)] if effort.thorough else []
    total = Difference()
    for case in cases:
        runner.restore()
        total += compare(expected, runner.run(case, part), case.name)
    return total


def _wide(runner: CaseRunner, probe: Probe, rng: np.random.Generator) -> dict[int, Difference]:
    """Full passes, and random cuts with pads."""
    found = {}
    block, longest = runner.shape.block, runner.map.longest_run
    expected = runner.run(cut(probe, [block], block), probe)
    for width in runner.shape.wide_widths[1:]:
        most = min(width, longest)
        full = cut(probe, [most], width)
        total = Difference()
        for case in (full, cut(probe, _random_sizes(rng, probe, most), width)):
            runner.restore()
            total += compare(expected, runner.run(case, probe), case.name)
        found[width] = total
    return found


def _wide_in_turn(runner: CaseRunner, probe: Probe) -> dict[int, Difference]:
    """One full pass of each width beside passes of the widest that proved equal; its last rows in a block.

    What an equal pass left is what the next one's first rows are compared with.
    """
    found: dict[int, Difference] = {}
    block, longest = runner.shape.block, runner.map.longest_run
    sound, done, expected = block, 0, Recording({}, {})
    for width in runner.shape.wide_widths[1:]:
        if width - done > MOST_PASSES * sound:
            break
        rest, whole = probe.part(done, width), probe.part(0, width)
        if rest.tokens:
            expected = expected.followed_by(runner.run(cut(rest, [min(sound, longest)], sound), rest))
        runner.restore()
        full = cut(whole, [min(width, longest)], width)
        recorded = runner.run(full, whole)
        end = whole.part(max(0, len(whole.tokens) - block), width)
        again = runner.run(cut(end, [block], block), end)
        found[width] = compare(expected, recorded, full.name)
        found[width] += compare(again, recorded, f"{full.name}, its last rows")
        if found[width].equal:
            sound, done = width, len(whole.tokens)
        else:
            runner.restore()
            done, expected = 0, Recording({}, {})
    return found


def _widened(runner: CaseRunner, probe: Probe, rng: np.random.Generator) -> Probe:
    """The probe with as many tokens as the widest pass has rows, so that every lane carries one."""
    shape = runner.shape
    count = min(shape.wide_widths[-1], shape.context)
    more = rng.integers(shape.vocabulary, size=count)
    tokens = (*probe.tokens, *(int(token) for token in more))[:count]
    return Probe(probe.past, min(probe.start, shape.context - count), tokens)


def _random_sizes(rng: np.random.Generator, probe: Probe, limit: int) -> list[int]:
    return [int(size) for size in rng.integers(1, limit + 1, size=len(probe.tokens))]
