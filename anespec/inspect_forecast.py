"""The output of `inspect --plan` for time: a pass on every chip that is known, as predicted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from anespec.console import out
from anespec.manifests.formatting import bytes_text, counted, listed
from anespec.manifests.schema import Target

if TYPE_CHECKING:
    from anespec.convert.plan import ConversionPlan

COLUMNS: Mapping[str, str] = {
    "weights_ms": "weights",
    "kv_ms": "K/V",
    "operations_ms": "operations",
    "dispatches_ms": "dispatches",
    "pass_ms": "ms a pass",
    "tokens_per_second": "tokens/s",
    "tokens_per_second_with_drafts": "with drafts",
}


def describe_forecast(plan: "ConversionPlan") -> dict[str, Any] | None:
    """The prediction for a program; None if the plan is not for a Mac. The model's file must be open."""
    if plan.options.target is not Target.MAC:
        return None
    # Graphs are built in order to count: without the libraries that coremltools would import.
    import anespec.convert.worker_imports  # noqa: F401
    from anespec.validate.cost_model.forecast import forecast_facts
    from anespec.validate.cost_model.work import PassWork

    return forecast_facts(PassWork.of_plan(plan))


def show_forecast(facts: Mapping[str, Any]) -> None:
    """Print a table of chips, and what the prediction comes from."""
    table = Table(box=None)
    table.add_column("chip", min_width=24)
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for chip in facts["chips"]:
        names = listed([name.removeprefix("Apple ") for name in chip["chips"]])
        table.add_row(names, *(f"{chip[key]:.1f}" for key in COLUMNS))
    work = facts["work"]
    out().print()
    out().print(table)
    out().print()
    out().print(
        f"- Milliseconds of a pass of {counted(work['rows'], 'row')}, {facts['basis']}. The pass reads "
        f"{bytes_text(work['weight_bytes'])} of weights, moves {bytes_text(work['kv_moved'])} of K/V if "
        f"nothing is fused, and writes {bytes_text(work['kv_written'])} of them, in "
        f"{counted(work['operations'], 'operation')} and "
        f"{counted(work['dispatches'], 'dispatch', 'dispatches')}. With drafts it makes "
        f"{facts['drafted_tokens']:.2f} tokens."
    )
