"""Describe the cases that a run of the exactness gate left out, in sentences for its verdict."""

from collections.abc import Sequence

from anespec.manifests.formatting import counted
from anespec.validate.effort import Effort
from anespec.validate.probe_checks import KNOWN_ROWS
from anespec.validate.span_checks import SpanPlan


def left_out(effort: Effort, together: int, plan: SpanPlan, widths: Sequence[int]) -> tuple[str, ...]:
    """What a reader of the verdict could take to have been tried; empty where nothing was left out.

    `together` is how many cases changed everything at once, `widths` are those that proved equal.
    """
    found = []
    if together:
        found.append(
            f"lane, neighbours, stale, partition and wanted were changed together, in "
            f"{counted(together, 'case')} of up to {KNOWN_ROWS} rows, and not each alone, since nothing "
            "differed"
        )
    if plan.edges and plan.planned < plan.pairs:
        found.append(
            f"of {plan.pairs} pairs of a span and one of {counted(len(widths), 'width')} {plan.planned} ran"
        )
    if not effort.thorough:
        found.append("of widths below the block's a few rows ran")
    return tuple(found)
