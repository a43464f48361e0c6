"""Check every span that the engine may run: whether a pass may read only a part of the slots.

For each step of each pool a block of rows stands directly below the step, on a past that fills the slots
before them. The rows run in a pass that reads every slot, and in one that reads up to the step, with loud
values in the slots behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import VerifierShape
from anespec.validate.exactness.bit_comparison import Difference, Recording, compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.effort import Effort
from anespec.validate.exactness.invariance_cases import InvarianceCase, Probe, at_spans, cut, in_region

EDGE_ROWS = 32
"""The number of rows of a pass at an edge, if passes may be that wide."""

PASSES_AT_AN_EDGE = 2
"""The passes at an edge of every width other than the usual one."""


@dataclass(frozen=True)
class SpanEdge:
    """The last rows of a region that fit partial spans, where the spans hold all slots up to these rows."""

    region: int
    end: int
    spans: tuple[int, ...]


def span_edges(shape: VerifierShape) -> list[SpanEdge]:
    """Return an edge for every step of every pool short of the whole pool, ascending in every pool's span.

    If pools grow at different rates, an edge has a longer span than it needs in some pools, and steps may be
    left out.
    """
    home = SlotMapping.of(shape)
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


def _spans(shape: VerifierShape, home: SlotMapping, region: int, end: int) -> tuple[int, ...]:
    """Return the smallest spans that hold the slots of `end` positions of a region and all slots before."""
    lasts = (home.slot(number, region, min(end, p.token_slots) - 1) for number, p in enumerate(shape.pools))
    return tuple(
        next(step for step in shape.span_steps(number) if step > last) for number, last in enumerate(lasts)
    )


@dataclass(frozen=True)
class SpanPlan:
    """What runs at each edge: the `usual` width at all of them, for every probe.

    `others` has the further widths, by probe and edge. `alone` has, by probe, the edges at which the pools'
    spans are also made partial one at a time. `pairs` is the number of pairs of a width and an edge. Edges
    are indices of `edges`.
    """

    edges: tuple[SpanEdge, ...]
    usual: int
    others: tuple[tuple[tuple[int, ...], ...], ...]
    alone: tuple[frozenset[int], ...]
    pairs: int

    @property
    def planned(self) -> int:
        """Return how many pairs of a width and an edge run."""
        of_others = {
            (edge, width) for probe in self.others for edge, each in enumerate(probe) for width in each
        }
        return len(self.edges) + len(of_others)


def span_plan(
    shape: VerifierShape, widths: Sequence[int], effort: Effort, probes: int, rng: np.random.Generator
) -> SpanPlan:
    """Distribute the proven `widths` over edges and probes.

    The usual width is the widest up to EDGE_ROWS. If thorough, every width up to that runs at every edge for
    one probe, and wider ones at the smallest and the largest partial span and one more. Otherwise only the
    widest runs, at those two.
    """
    edges = tuple(span_edges(shape))
    usual = max(width for width in widths if width <= max(EDGE_ROWS, shape.block))
    dealt: list[list[list[int]]] = [[[] for _ in edges] for _ in range(probes)]
    extremes = {0, len(edges) - 1} if edges else set()
    others = [width for width in widths if width != usual]
    for width in others if effort.thorough else others[-1:]:
        wide = width > EDGE_ROWS or not effort.thorough
        at = extremes | ({int(rng.integers(len(edges)))} if effort.thorough and edges else set())
        for edge in at if wide else range(len(edges)):
            dealt[int(rng.integers(probes))][edge].append(width)
    several_pools = effort.thorough and len(shape.pools) > 1
    alone = [
        frozenset(e for e in range(len(edges)) if several_pools and (e + number) % probes == 0)
        for number in range(probes)
    ]
    return SpanPlan(
        edges,
        usual,
        tuple(tuple(tuple(each) for each in probe) for probe in dealt),
        tuple(alone),
        len(edges) * len(widths),
    )


def measure_spans(
    runner: CaseRunner, probe: Probe, plan: SpanPlan, number: int, rng: np.random.Generator
) -> Mapping[tuple[int, ...], Difference]:
    """Return the differences of passes that read only what they need, by span; empty without partial spans.

    `number` is the probe's index in the plan. The runner is left with another past.
    """
    if not plan.edges:
        return {}
    _lay_past(runner, probe, plan.edges)
    trials = [_EdgeTrial(runner, probe, edge, plan.usual) for edge in plan.edges]
    whole = runner.shape.whole_spans
    found: dict[tuple[int, ...], Difference] = {}
    behind = whole
    for place, trial in reversed([*enumerate(trials)]):
        own = trial.edge.spans
        for pool, (first, end) in enumerate(zip(own, behind, strict=True)):
            runner.fill(pool, np.arange(first, end), rng, trials[0].probe.start)
        behind = own
        tried = {own: (plan.usual, *plan.others[number][place])}
        if place in plan.alone[number]:
            tried |= {spans: (plan.usual,) for spans in _one_pool_at_a_time(own, whole) if spans != own}
        for spans, widths in tried.items():
            found[spans] = found.get(spans, Difference()) + trial.measure(spans, widths)
    return found


def proven_spans(
    shape: VerifierShape, found: Mapping[tuple[int, ...], Difference]
) -> tuple[tuple[int, ...], ...]:
    """Return the usable spans of each pool: the whole pool, and each span that was run and never differed."""
    proven = []
    for pool, whole in enumerate(shape.whole_spans):
        tried: dict[int, Difference] = {}
        for spans, difference in found.items():
            tried[spans[pool]] = tried.get(spans[pool], Difference()) + difference
        partial = {span for span, difference in tried.items() if difference.equal}
        proven.append(tuple(sorted({*partial, whole})))
    return tuple(proven)


def _one_pool_at_a_time(spans: tuple[int, ...], whole: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return spans of which only one pool's is partial."""
    return [
        (*whole[:pool], spans[pool], *whole[pool + 1 :])
        for pool in range(len(whole))
        if spans[pool] < whole[pool]
    ]


def _lay_past(runner: CaseRunner, probe: Probe, edges: Sequence[SpanEdge]) -> None:
    """Fill the slots of every region that has an edge, up to the furthest edge."""
    furthest = max(edge.end for edge in edges)
    laid = Probe(probe.past or probe.tokens, furthest, ())
    runner.prepare(laid)
    for region in range(1, max(edge.region for edge in edges) + 1):
        runner.copy_past(laid, 0, region)


class _EdgeTrial:
    """The rows at one edge, and their results in passes of the usual width that read every slot."""

    def __init__(self, runner: CaseRunner, probe: Probe, edge: SpanEdge, width: int) -> None:
        count = min(width, edge.end, len(probe.tokens))
        self.runner, self.edge, self.usual = runner, edge, width
        self.probe = Probe((), edge.end - count, probe.tokens[:count])
        self.expected = self._run(self._case(self.probe, width), self.probe)

    def measure(self, spans: tuple[int, ...], widths: Sequence[int]) -> Difference:
        """Compare passes of those spans and of each width over the edge's rows.

        A width other than the usual one runs only the last rows, on the expected K/V before them.
        """
        total, count = Difference(), len(self.probe.tokens)
        for width in dict.fromkeys(widths):
            rows = count if width == self.usual else min(count, PASSES_AT_AN_EDGE * width)
            part = self.probe.part(count - rows, count)
            case = at_spans(self._case(part, width), spans)
            total += compare(self.expected, self._run(case, part), case.name)
        return total

    def _case(self, part: Probe, width: int) -> InvarianceCase:
        return in_region(cut(part, [min(width, self.runner.map.longest_run)], width), self.edge.region)

    def _run(self, case: InvarianceCase, part: Probe) -> Recording:
        """Run a case of the last rows, and restore what it has overwritten."""
        self.runner.keep(self.probe, self.edge.region)
        if part != self.probe:
            self.runner.lay(self.expected, part.start, self.edge.region)
        recorded = self.runner.run(case, part, self.edge.region)
        self.runner.restore()
        return recorded
