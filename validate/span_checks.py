"""Whether a pass may look at fewer slots than there are: every span that the engine may run.

At each step of each pool a block of rows stands right below it, on a past that fills the slots before them.
They run in a pass that looks at every slot, and in one that looks no further than the step, with loud values
behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.runtime.passes import VerifierShape
from anespec.runtime.regions import RegionMap
from anespec.validate.bit_comparison import Difference, Recording, compare
from anespec.validate.case_runner import CaseRunner
from anespec.validate.effort import Effort
from anespec.validate.invariance_cases import InvarianceCase, Probe, at_spans, cut, in_region

EDGE_ROWS = 32
"""Rows of a pass at an edge, where passes may be as wide."""


@dataclass(frozen=True)
class SpanEdge:
    """The last rows of a region that fit into partial spans: of at least all slots up to theirs."""

    region: int
    end: int
    spans: tuple[int, ...]


def span_edges(shape: VerifierShape) -> list[SpanEdge]:
    """An edge for every step of every pool that is not the whole pool, ascending in every pool's span.

    Where pools do not grow alike, an edge has a longer span than it needs in some, and steps may be left out.
    """
    home = RegionMap.of(shape)
    edges = set()
    for pool in range(len(shape.pools)):
        for step in shape.span_steps(pool)[:-1]:
            region, last = home.place(pool, step - 1)
            end = min(last + 1, shape.context)
            edges.add((_spans(shape, home, region, end), region, end))
    ascending: list[SpanEdge] = []
    for spans, region, end in sorted(edges):
        before = ascending[-1].spans if ascending else spans
        ascending.append(SpanEdge(region, end, tuple(map(max, before, spans))))
    return ascending


def _spans(shape: VerifierShape, home: RegionMap, region: int, end: int) -> tuple[int, ...]:
    """The least spans that hold the slots of `end` positions of a region, and all before the last of them."""
    lasts = (home.slot(number, region, min(end, p.region_slots) - 1) for number, p in enumerate(shape.pools))
    return tuple(
        next(step for step in shape.span_steps(number) if step > last) for number, last in enumerate(lasts)
    )


def measure_spans(
    runner: CaseRunner,
    probe: Probe,
    widths: Sequence[int],
    effort: Effort,
    rng: np.random.Generator,
) -> Mapping[tuple[int, ...], Difference]:
    """What differs where a pass looks at no more than it needs, by its spans; empty where none are partial.

    `widths` are those that proved equal: the widest up to EDGE_ROWS runs at every edge, the widest of all at
    the least and at the largest partial span too, and if thorough each of them at all. The runner is left
    with another past.
    """
    edges = span_edges(runner.shape)
    if not edges:
        return {}
    _lay_past(runner, probe, edges)
    usual = max(width for width in widths if width <= max(EDGE_ROWS, runner.shape.block))
    trials = [_EdgeTrial(runner, probe, edge, usual) for edge in edges]
    whole = runner.shape.whole_spans
    found: dict[tuple[int, ...], Difference] = {}
    behind = whole
    for trial in reversed(trials):
        for pool, (first, end) in enumerate(zip(trial.edge.spans, behind, strict=True)):
            runner.fill(pool, np.arange(first, end), rng, trials[0].probe.start)
        behind = trial.edge.spans
        extreme = trial in (trials[0], trials[-1])
        others = widths if effort.thorough else widths[-1:] if extreme else ()
        alone = _one_pool_at_a_time(trial.edge.spans, whole) if effort.thorough and len(whole) > 1 else []
        for spans in (trial.edge.spans, *alone):
            tried = (usual, *others) if spans == trial.edge.spans else (usual,)
            found[spans] = found.get(spans, Difference()) + trial.measure(spans, tried)
    return found


def proven_spans(
    shape: VerifierShape, found: Mapping[tuple[int, ...], Difference]
) -> tuple[tuple[int, ...], ...]:
    """The spans of each pool that passes may have: the whole, and each that was tried and never differed."""
    proven = []
    for pool, whole in enumerate(shape.whole_spans):
        tried: dict[int, Difference] = {}
        for spans, difference in found.items():
            tried[spans[pool]] = tried.get(spans[pool], Difference()) + difference
        partial = {span for span, difference in tried.items() if difference.equal}
        proven.append(tuple(sorted({*partial, whole})))
    return tuple(proven)


def _one_pool_at_a_time(spans: tuple[int, ...], whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Spans of which only one pool's is partial."""
    return [
        (*whole[:pool], spans[pool], *whole[pool + 1 :])
        for pool in range(len(whole))
        if spans[pool] < whole[pool]
    ]


def _lay_past(runner: CaseRunner, probe: Probe, edges: Sequence[SpanEdge]) -> None:
    """Fill the slots of every region that an edge is in, up to the furthest of them."""
    furthest = max(edge.end for edge in edges)
    laid = Probe(probe.past or probe.tokens, furthest, ())
    runner.prepare(laid)
    for region in range(1, max(edge.region for edge in edges) + 1):
        runner.copy_past(laid, 0, region)


class _EdgeTrial:
    """The rows at one edge, and what a pass that looks at every slot makes of them."""

    def __init__(self, runner: CaseRunner, probe: Probe, edge: SpanEdge, width: int) -> None:
        count = min(width, edge.end, len(probe.tokens))
        self.runner, self.edge = runner, edge
        self.probe = Probe((), edge.end - count, probe.tokens[:count])
        self.expected = self._run(self._case(width))

    def measure(self, spans: tuple[int, ...], widths: Sequence[int]) -> Difference:
        """Compare passes of those spans and of each width, which hold the edge's rows."""
        total = Difference()
        for width in dict.fromkeys(widths):
            case = at_spans(self._case(width), spans)
            total += compare(self.expected, self._run(case), case.name)
        return total

    def _case(self, width: int) -> InvarianceCase:
        return in_region(cut(self.probe, [min(width, self.runner.map.longest_run)], width), self.edge.region)

    def _run(self, case: InvarianceCase) -> Recording:
        """Run a case, and put back what it has overwritten."""
        self.runner.keep(self.probe, self.edge.region)
        recorded = self.runner.run(case, self.probe, self.edge.region)
        self.runner.restore()
        return recorded
