"""The results of a bench run, with the machine on which it ran."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from anespec.runtime.speculation.pass_costs import PassCosts
from anespec.system.machine import Surroundings
from anespec.validate.bench.figures import Figures, figures_of
from anespec.validate.bench.fits import CostFit, Estimate, LineFit, fit_cost, fit_line
from anespec.validate.bench.measure import PAYING, Case, Difference, Variant, Way
from anespec.validate.cost_model.forecast import Comparison


@dataclass(frozen=True)
class BenchReport:
    """All cases of a run of `drafter` on an artifact, and the machine on which it ran.

    `drafts` are the fixed numbers of drafts a pass that were tried, ascending. `lengths` are in output
    tokens. `costs` are the costs of passes that the engine uses. `comparison` compares a pass of the block
    with its prediction, on a Mac with a known chip. `energy` is the name of the energy meter, or the sentence
    that says why there is none. `draft` is the second model that drafts.
    """

    model: str
    backend: str
    threads: int
    block: int
    drafter: str
    sampling: str
    runs: int
    lengths: tuple[int, ...]
    drafts: tuple[int, ...]
    costs: PassCosts
    surroundings: Surroundings
    seconds: float
    cases: tuple[Case, ...]
    comparison: Comparison | None = None
    energy: str = ""
    draft: str | None = None

    @property
    def sources(self) -> str:
        """Return what drafted, e.g. `auto and small.gguf`."""
        return self.drafter if self.draft is None else f"{self.drafter} and {self.draft}"

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Return the differences between texts with and without speculation; exact speculation has none."""
        return tuple(difference for case in self.cases for difference in case.differences)

    @property
    def comparisons(self) -> int:
        """Return the number of pairs of texts that were compared."""
        return sum(case.comparisons for case in self.cases)

    @property
    def compared_tokens(self) -> int:
        """Return the number of tokens in these pairs."""
        return sum(case.compared_tokens for case in self.cases)

    @property
    def ways(self) -> tuple[Way, ...]:
        """Return the ways of drafting: each fixed number of drafts, then drafts as they pay."""
        return (*map(Way, self.drafts), PAYING)

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the kinds of text that were run, in their order."""
        return tuple(dict.fromkeys(case.prompt.prompt_class for case in self.cases))

    def figures(
        self, prompt_class: str | None = None, length: int | None = None, way: Way = PAYING
    ) -> Figures | None:
        """Return the sums over the cases of a class, of a length or of both, for one way of drafting.

        Returns None if no text was long enough to be timed.
        """
        chosen = [
            case
            for case in self.cases
            if prompt_class in (None, case.prompt.prompt_class) and length in (None, case.length)
        ]
        return figures_of(chosen, way)

    @property
    def shown_line(self) -> LineFit | None:
        """Return the line fitted for `shown_drafts`; None if there is none."""
        found = {line.drafts: line for line in self.lines}
        return found.get(self.shown_drafts)

    @property
    def shown_drafts(self) -> int:
        """Return how many drafts fill a block, if that was tried, or else the most that were tried."""
        return self.block - 1 if self.block - 1 in self.drafts else self.drafts[-1]

    @cached_property
    def lines(self) -> tuple[LineFit, ...]:
        """Return the line of speed against acceptance for each number of drafts with enough points."""
        points = [point for case in self.cases for point in case.points]
        found = (fit_line([point for point in points if point.drafts == count]) for count in self.drafts)
        return tuple(line for line in found if line is not None)

    @cached_property
    def cost(self) -> CostFit | None:
        """Return the fitted cost of drafts; None if too few cases were run."""
        return fit_cost([point for case in self.cases for point in case.points])

    def facts(self) -> dict[str, Any]:
        """Return the object for --json."""
        return {
            "model": self.model,
            "backend": self.backend,
            "threads": self.threads,
            "block": self.block,
            "drafter": self.drafter,
            "draft": self.draft,
            "sampling": self.sampling,
            "runs": self.runs,
            "machine": asdict(self.surroundings),
            "pass_costs": [
                {
                    "rows": each.width,
                    "milliseconds": round(1e3 * each.seconds, 4),
                    "microseconds_per_slot": round(1e6 * each.per_slot, 4),
                }
                for each in self.costs.widths
            ],
            "predicted": None if self.comparison is None else self.comparison.facts(),
            "change_of_width_milliseconds": round(1e3 * self.costs.change, 4),
            "energy": self.energy,
            "seconds": round(self.seconds, 3),
            "identical": not self.differences,
            "comparisons": self.comparisons,
            "compared_tokens": self.compared_tokens,
            "differences": [difference_facts(each) for each in self.differences],
            "classes": {str(each): figures_facts(self.figures(each)) for each in self.classes},
            "lengths": {str(each): figures_facts(self.figures(length=each)) for each in self.lengths},
            "drafts": {str(each): figures_facts(self.figures(way=Way(each))) for each in self.drafts},
            "overall": figures_facts(self.figures()),
            "fits": {
                "lines": [line_facts(line) for line in self.lines],
                "cost": None if self.cost is None else cost_facts(self.cost, self.drafts),
            },
            "cases": [case_facts(case) for case in self.cases],
        }


def _drafts(way: Way) -> int | None:
    """Return the drafts of a pass; None if they were run as they pay."""
    return None if way.as_they_pay else way.most


def figures_facts(figures: Figures | None) -> dict[str, Any] | None:
    """Return the object for --json of figures; None if there are none."""
    if figures is None:
        return None
    return {
        "drafts": _drafts(figures.way),
        "tokens_per_second": {
            "without": [round(value, 2) for value in figures.plain.values],
            "with": [round(value, 2) for value in figures.drafted.values],
        },
        "speedup": round(figures.speedup.median, 4),
        "speedup_range": [round(figures.speedup.least, 4), round(figures.speedup.most, 4)],
        "joules_per_token": None
        if figures.plain_joules is None or figures.drafted_joules is None
        else {
            "without": [round(value, 5) for value in figures.plain_joules.values],
            "with": [round(value, 5) for value in figures.drafted_joules.values],
        },
        "tokens_per_pass": round(figures.tokens_per_pass, 4),
        "proposed_by_position": list(figures.proposed_by_position),
        "accepted_by_position": list(figures.accepted_by_position),
    }


def difference_facts(difference: Difference) -> dict[str, Any]:
    """Return the object for --json of a difference."""
    prompt = difference.prompt
    return {
        "class": str(prompt.prompt_class),
        "number": prompt.number,
        "length": difference.length,
        "way": str(difference.way),
        "drafts": _drafts(difference.way),
        "plain_run": difference.plain_run,
        "run": difference.run,
        "place": difference.place,
        "expected": difference.expected,
        "found": difference.found,
    }


def case_facts(case: Case) -> dict[str, Any]:
    """Return the object for --json of a case."""
    return {
        "class": str(case.prompt.prompt_class),
        "number": case.prompt.number,
        "length": case.length,
        "prompt_tokens": len(case.prompt.ids),
        "without": _variant(case.plain),
        "with": [
            {
                "way": str(each.way),
                "drafts": _drafts(each.way),
                **_variant(each),
                "speedup": round(case.speedup(each), 4) if case.is_timed else None,
            }
            for each in case.drafted
        ],
    }


def _variant(variant: Variant) -> dict[str, Any]:
    cost = variant.cost
    return {
        "tokens": len(variant.runs[0].ids),
        "passes": cost.decode_passes,
        "tokens_per_pass": round(cost.tokens_per_pass, 4),
        "tokens_per_second": [round(run.speed, 2) for run in variant.runs],
        "joules": [None if run.joules is None else round(run.joules, 4) for run in variant.runs],
        "prefill_tokens": cost.prompt_tokens - cost.reused_tokens,
        "prefill_seconds": [round(run.statistics.prefill_seconds, 5) for run in variant.runs],
        "proposed_by_position": list(cost.proposed_by_position),
        "accepted_by_position": list(cost.accepted_by_position),
        "sources": {
            each.source: {"proposed": each.proposed, "accepted": each.accepted} for each in cost.by_source
        },
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 5) for name, value in vars(estimate).items()}


def line_facts(line: LineFit) -> dict[str, Any]:
    """Return the object for --json of a fitted line."""
    return {
        "drafts": line.drafts,
        "points": line.points,
        "intercept": round(line.intercept, 5),
        "slope": round(line.slope, 5),
        "break_even": None if line.break_even is None else _estimate(line.break_even),
    }


def cost_facts(cost: CostFit, drafts: Sequence[int]) -> dict[str, Any]:
    """Return the object for --json of the fitted cost of drafts."""
    break_even: Mapping[str, float] = {str(each): round(cost.break_even(each), 5) for each in drafts}
    return {
        "points": cost.points,
        "r": _estimate(cost.r),
        "b": _estimate(cost.b),
        "error": round(cost.error, 5),
        "r_squared": None if cost.r_squared is None else round(cost.r_squared, 5),
        "break_even": break_even,
    }
