"""Write the results of `bench run` as objects for --json."""

from collections.abc import Mapping, Sequence
from typing import Any

from anespec.runtime.speculation.pass_costs import PassCosts
from anespec.validate.bench.figures import Figures
from anespec.validate.bench.fits import CostFit, Estimate, LineFit
from anespec.validate.bench.measure import Case, Difference, Variant, Way


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
        "group": case.prompt.group,
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


def pass_cost_facts(costs: PassCosts) -> dict[str, Any]:
    """Return the object for --json of the costs of passes."""
    return {
        "change_of_width_milliseconds": round(1e3 * costs.change, 4),
        "widths": [
            {
                "rows": each.width,
                "milliseconds": round(1e3 * each.seconds, 4),
                "microseconds_per_slot": round(1e6 * each.per_slot, 4),
            }
            for each in costs.widths
        ],
    }
