"""Times passes of every width, once on each machine."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter

from anespec.runtime.engine.planner import least_spans, usable_spans
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import LogitsRequest, PassPlan, RowKind, Verifier, VerifierShape, run_pass
from anespec.runtime.proven import Proven
from anespec.runtime.rows import chain_rows
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost

ROUNDS = 3
"""Rounds of the measurement. Every width runs twice a round. The fastest second pass counts, since other load
only slows passes down, and longer load affects all widths; so does the fastest first pass, which follows
another width."""

AGAIN = 3
"""More rounds, at most, of widths that seem cheaper than a narrower one: few are, and a busy machine makes it
look so."""

ENOUGH = 0.3
"""Seconds of a pass that is not timed again."""

OF_A_DRAFT = LogitsRequest(best=True, top=8)
"""The results that greedy sampling and `auto` need of a row. Finding the likeliest tokens may take longer
than the best."""

FAR = 2048
"""Slots that the long passes attend to, if there are as many; other spans lie on a line through both points.
Attending to more could allocate memory for slots that are never used."""


def measure_pass_costs(
    verifier: Verifier,
    proven: Proven,
    progress: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = perf_counter,
) -> PassCosts:
    """Time passes of every proven width, on unused slots.

    The next sequence in the first region treats their results as stale. `progress` is called with the number
    of timed passes and the total. Raises what the verifier does.
    """
    steps = usable_spans(verifier.shape, proven)[0]
    near, far = steps[0], max((step for step in steps if step <= FAR), default=steps[0])
    plans = [_plan(verifier.shape, width, near) for width in proven.widths]
    block = verifier.shape.block
    pair = [block, *(width for width in proven.widths if width > block)][:2]
    far_plans = [_plan(verifier.shape, width, far) for width in pair] if far > near else []
    first, times = _fastest(verifier, (*plans, *far_plans), progress, clock)
    for _ in range(AGAIN):
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
            # What slots add was measured of two widths and is noisy, and no pass costs nothing.
            WidthCost(width, max(times[width, near] - near * per_slot, times[width, near] / 4), per_slot)
            for width, per_slot in _by_width(proven.widths, slopes)
        ],
        median(changes) if len(plans) > 1 and changes else 0.0,
    )


def _by_width(widths: Sequence[int], slopes: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield the cost of a slot at each width: on a line through the measured ones, and never less than at
    the first."""
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
    """Seconds of the fastest pass of each plan, by its width and span: after another, and after its like.

    A process's first pass of a width may take minutes, so that none of the first round counts as one after
    another.
    """
    first: dict[tuple[int, int], float] = {}
    found: dict[tuple[int, int], float] = {}
    for number in range(ROUNDS):
        for place, plan in enumerate(plans):
            progress(number * len(plans) + place, ROUNDS * len(plans))
            key = plan.width, plan.spans[0]
            if found.get(key, 0.0) > ENOUGH:
                continue
            for fastest in (first, found):
                began = clock()
                run_pass(verifier, plan)
                if number or fastest is found:
                    fastest[key] = min(fastest.get(key, math.inf), clock() - began)
    return first, found


def _falling(plans: Sequence[PassPlan], times: Mapping[tuple[int, int], float]) -> list[PassPlan]:
    """The plans, ascending in width, that took longer than a wider one, and took so little that they may run
    again."""
    found: list[PassPlan] = []
    cheapest = math.inf
    for plan in reversed(plans):
        took = times[plan.width, plan.spans[0]]
        if cheapest < took <= ENOUGH:
            found.insert(0, plan)
        cheapest = min(cheapest, took)
    return found


def _time_again(
    verifier: Verifier,
    plans: Sequence[PassPlan],
    times: dict[tuple[int, int], float],
    clock: Callable[[], float],
) -> None:
    """Take the fastest of two more passes of each plan, the second of which comes after its like."""
    for plan in plans:
        key = plan.width, plan.spans[0]
        for _ in range(2):
            began = clock()
            run_pass(verifier, plan)
            times[key] = min(times[key], clock() - began)


def _plan(shape: VerifierShape, width: int, span: int) -> PassPlan:
    """Rows of the first region from position 0 on, of which as many are wanted as drafts would be."""
    home = SlotMapping.of(shape)
    rows = chain_rows(home, 0, 0, RowKind.PROMPT, [0] * min(width, home.longest_run, shape.context))
    wanted = dict.fromkeys(range(min(len(rows), 2 * shape.block)), OF_A_DRAFT)
    spans = least_spans(rows, width, shape)
    return PassPlan(tuple(rows), width, (max(span, spans[0]), *spans[1:]), wanted)
