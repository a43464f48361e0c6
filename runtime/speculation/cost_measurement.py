"""Measure the time of passes of every width, once on each machine."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import LogitsRequest, PassPlan, RowKind, Verifier, VerifierShape, run_pass
from anespec.runtime.proven import Proven
from anespec.runtime.rows import chain_rows
from anespec.runtime.spans import least_spans, usable_spans
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost

ROUNDS = 3
"""Rounds of the measurement. In each, every width runs twice in a row. The first pass follows another width,
the second its own. The fastest of each count: other load only slows passes down, and longer load affects all
widths."""

MAX_EXTRA_ROUNDS = 3
"""Further rounds for widths that took longer than a wider one. Few widths really do; more often other load
makes it look so."""

LONG_PASS_SECONDS = 0.3
"""A pass that takes longer is not timed again."""

DRAFT_ROW_LOGITS = LogitsRequest(best=True, top=8)
"""The results that greedy sampling and `auto` need of a row. Finding the likeliest tokens may take longer
than finding the best one alone."""

GOLDEN_RATIO = (1 + 5**0.5) / 2

LONG_SPAN = 2048
"""The largest span that is timed. The costs of other spans lie on the line through the shortest and this one.
Attending to more slots could allocate memory for slots that are never used."""


def measure_pass_costs(
    verifier: Verifier,
    proven: Proven,
    progress: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = perf_counter,
) -> PassCosts:
    """Time passes of every proven width, on unused slots; return their costs.

    The passes leave stale K/V in the first region, which its next sequence overwrites. `progress` is called
    with the number of timed passes and the total. Errors of the verifier are raised.
    """
    steps = usable_spans(verifier.shape, proven)[0]
    near, far = steps[0], max((step for step in steps if step <= LONG_SPAN), default=steps[0])
    plans = [_plan(verifier.shape, width, near) for width in proven.widths]
    block = verifier.shape.block
    pair = [block, *(width for width in proven.widths if width > block)][:2]
    far_plans = [_plan(verifier.shape, width, far) for width in pair] if far > near else []
    first, times = _fastest(verifier, (*plans, *far_plans), progress, clock)
    for _ in range(MAX_EXTRA_ROUNDS):
        doubtful = _falling(plans, times)
        if not doubtful:
            break
        _time_again(verifier, doubtful, times, clock)
    changes = [max(0.0, first[key] - times[key]) for key in first]
    slopes = [
        (width, max(0.0, (times[width, far] - times[width, near]) / (far - near)))
        for width in (pair if far_plans else ())
    ]
    return PassCosts.of(
        [
            # The cost of a slot is noisy, so the rest of a pass is taken to cost at least a quarter.
            WidthCost(width, max(times[width, near] - near * per_slot, times[width, near] / 4), per_slot)
            for width, per_slot in _by_width(proven.widths, slopes)
        ],
        median(changes) if len(plans) > 1 and changes else 0.0,
    )


def _by_width(widths: Sequence[int], slopes: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield each width with its cost of a slot, which lies on a line through the two measured widths.

    The line never falls, and no cost is negative.
    """
    for width in widths:
        if len(slopes) < 2:
            yield width, slopes[0][1] if slopes else 0.0
            continue
        ((first, low), (second, high)) = slopes
        yield width, max(0.0, low + max(0.0, high - low) * (width - first) / (second - first))


def _fastest(
    verifier: Verifier,
    plans: Sequence[PassPlan],
    progress: Callable[[int, int], None],
    clock: Callable[[], float],
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """Return the seconds of each plan's fastest pass by (width, span): after another plan, and after its own.

    A process's first pass of a width may take minutes. So the first pass of the first round does not count as
    a pass after another plan.
    """
    first: dict[tuple[int, int], float] = {}
    found: dict[tuple[int, int], float] = {}
    for number in range(ROUNDS):
        for place, plan in enumerate(plans):
            progress(number * len(plans) + place, ROUNDS * len(plans))
            key = plan.width, plan.spans[0]
            if found.get(key, 0.0) > LONG_PASS_SECONDS:
                continue
            for fastest in (first, found):
                began = clock()
                run_pass(verifier, plan)
                if number or fastest is found:
                    fastest[key] = min(fastest.get(key, math.inf), clock() - began)
    return first, found


def _falling(plans: Sequence[PassPlan], times: Mapping[tuple[int, int], float]) -> list[PassPlan]:
    """Return the plans that took longer than a wider one, and are short enough to run again.

    `plans` and the result ascend in width.
    """
    found: list[PassPlan] = []
    cheapest = math.inf
    for plan in reversed(plans):
        took = times[plan.width, plan.spans[0]]
        if cheapest < took <= LONG_PASS_SECONDS:
            found.insert(0, plan)
        cheapest = min(cheapest, took)
    return found


def _time_again(
    verifier: Verifier,
    plans: Sequence[PassPlan],
    times: dict[tuple[int, int], float],
    clock: Callable[[], float],
) -> None:
    """Run each plan twice more in a row, and update its fastest time."""
    for plan in plans:
        key = plan.width, plan.spans[0]
        for _ in range(2):
            began = clock()
            run_pass(verifier, plan)
            times[key] = min(times[key], clock() - began)


def _different_tokens(vocabulary: int, count: int) -> list[int]:
    """Return tokens from all over the vocabulary, since rows of one token would use the same experts.

    They are multiples of the golden ratio modulo 1, times the vocabulary's size.
    """
    return [int(place * GOLDEN_RATIO % 1 * vocabulary) for place in range(count)]


def _plan(shape: VerifierShape, width: int, span: int) -> PassPlan:
    """Return a pass over rows of the first region from position 0 on, with logits for as many rows as a pass
    with drafts wants.

    The rows have different tokens: what a row of a mixture of experts costs depends on the tokens beside it.
    """
    home = SlotMapping.of(shape)
    count = min(width, home.longest_run_from(0), shape.context)
    rows = chain_rows(home, 0, 0, RowKind.PROMPT, _different_tokens(shape.vocabulary, count))
    wanted = dict.fromkeys(range(min(len(rows), 2 * shape.block)), DRAFT_ROW_LOGITS)
    spans = least_spans(rows, width, shape)
    return PassPlan(tuple(rows), width, (max(span, spans[0]), *spans[1:]), wanted)
