"""Which numbers of rows a pass may have, other than the block's: every width that the engine may run."""

from collections.abc import Mapping

import numpy as np

from anespec.runtime.passes import VerifierShape
from anespec.validate.bit_comparison import Difference, Recording, compare
from anespec.validate.case_runner import CaseRunner
from anespec.validate.effort import Effort
from anespec.validate.invariance_cases import Probe, cut

MOST_PASSES = 8
"""What the quick form spends on the rows that a wide pass is compared with, beyond those known already. Where
narrower ones differ that takes more of them, and a width that would need more is left unproven."""

WIDE_ROWS = 48
"""Rows that the quick form looks at of each wide width, if MOST_PASSES reach: one pass of eight rows would be
little to tell that drafts may run in it."""

NARROW_PASSES = 4
"""Of each width below the block's in the quick form: kernels that differ round few rows differently."""


def long_probe(shape: VerifierShape, probe: Probe, rows: int, rng: np.random.Generator) -> Probe:
    """The probe with tokens for so many rows, and every lane of the widest pass, as the context allows."""
    count = min(max(shape.widths[-1], rows), shape.context)
    more = rng.integers(shape.vocabulary, size=count)
    tokens = (*probe.tokens, *(int(token) for token in more))[:count]
    return Probe(probe.past, min(probe.start, shape.context - count), tokens)


def measure_widths(
    runner: CaseRunner, probe: Probe, expected: Recording, effort: Effort, rng: np.random.Generator
) -> Mapping[int, Difference]:
    """What differs from passes as wide as a block, by width; one that was not compared is absent.

    `expected` is what blocks leave of the first tokens of the probe, which is prepared.
    """
    narrow = [width for width in runner.shape.widths if width < runner.shape.block]
    found = {width: _narrow(runner, probe, expected, width, effort, rng) for width in narrow}
    runner.restore()
    return found | (_wide(runner, probe, rng) if effort.thorough else _wide_in_turn(runner, probe, expected))


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
    known = probe.part(0, len(expected.rows))
    part = known if effort.thorough else known.part(0, NARROW_PASSES // 2 * sum(sizes))
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


def _wide_in_turn(runner: CaseRunner, probe: Probe, known: Recording) -> dict[int, Difference]:
    """Full passes of each width, one or more, beside what is known of their rows from blocks.

    What that does not reach is found by passes of the widest that proved equal, and its last rows by a block.
    """
    found: dict[int, Difference] = {}
    block, longest = runner.shape.block, runner.map.longest_run
    sound, expected = block, known
    for width in runner.shape.wide_widths[1:]:
        reached = len(expected.rows) + MOST_PASSES * sound
        whole = probe.part(0, max(width, min(WIDE_ROWS, reached) // width * width))
        missing = len(whole.tokens) - len(expected.rows)
        if missing > MOST_PASSES * sound:
            break
        if missing > 0:
            rest = probe.part(len(expected.rows), len(whole.tokens))
            runner.restore()
            runner.lay(expected)
            expected = expected.followed_by(runner.run(cut(rest, [min(sound, longest)], sound), rest))
        runner.restore()
        full = cut(whole, [min(width, longest)], width)
        recorded = runner.run(full, whole)
        found[width] = compare(expected, recorded, full.name)
        if missing > 0:
            end = whole.part(max(0, len(whole.tokens) - block), len(whole.tokens))
            again = runner.run(cut(end, [block], block), end)
            found[width] += compare(again, recorded, f"{full.name}, its last rows")
        sound = width if found[width].equal else sound
    return found


def _random_sizes(rng: np.random.Generator, probe: Probe, limit: int) -> list[int]:
    return [int(size) for size in rng.integers(1, limit + 1, size=len(probe.tokens))]
