"""Print the output of `inspect --plan`: the shards, the evidence on their sizes, and the reasons."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from anespec.cli.console import out
from anespec.manifests.schema import BEST_CHANNELS, HeadOutputs, Target
from anespec.system.formatting import bytes_text, counted, listed

if TYPE_CHECKING:
    from anespec.convert.planning.plan import ConversionPlan
    from anespec.convert.planning.report import PlanReport, ShardRow
    from anespec.convert.planning.shard_limits import SizeRange


# The bytes that the head of a pass returns to the host; counted, not measured.

BYTES = 2
"""The bytes of an fp16 number."""


def head_bytes(rows: int, tokens: int, slices: int) -> dict[HeadOutputs, int]:
    """Return the bytes that the head returns for `rows` rows: all logits, or the best token of each slice."""
    return {
        HeadOutputs.LOGITS: BYTES * rows * tokens,
        HeadOutputs.ARGMAX: BYTES * rows * BEST_CHANNELS * slices,
    }


def head_sentence(rows: int, tokens: int, slices: int, outputs: HeadOutputs) -> str:
    """Return a sentence about the bytes that a decoding pass of `rows` rows returns."""
    returned = head_bytes(rows, tokens, slices)
    logits = (
        f"The head returns {bytes_text(returned[HeadOutputs.LOGITS])} of logits from a pass over "
        f"{counted(rows, 'row')}"
    )
    best = f"{counted(returned[HeadOutputs.ARGMAX], 'byte')} from one that needs the best token of each alone"
    if outputs is HeadOutputs.ARGMAX:
        return f"{logits}, and {best}."
    return f"{logits}; with --head-outputs argmax {best}."


# The predicted time of a pass on every known chip.

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
    """Return the predicted times for --json; None if the plan is not for a Mac. The GGUF must be open."""
    if plan.options.target is not Target.MAC:
        return None
    # Graphs are built to count operations; this import keeps coremltools from importing large libraries.
    import anespec.convert.worker_imports  # noqa: F401
    from anespec.validate.cost_model.forecast import forecast_facts
    from anespec.validate.cost_model.planned import planned_work

    return forecast_facts(planned_work(plan))


def show_forecast(facts: Mapping[str, Any]) -> None:
    """Print a table of the predicted times on each chip, and the work that they are based on."""
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


def describe_plan(plan: "ConversionPlan") -> dict[str, Any]:
    """Return the plan for --json: shards with their ranges, the cost of K/V, predicted times, reasons and
    warnings."""
    from anespec.convert.planning.kv_traffic import contexts_beside, kv_traffic
    from anespec.convert.planning.report import explain

    report = explain(plan.sharding)
    preset = plan.sharding.preset
    return {
        "topology_from": plan.sharding.origin.value,
        "layer_shards": [
            {"layers": [row.part.start, row.part.stop], "kinds": row.kinds} | _size(row)
            for row in report.layer_shards
        ],
        "head_shards": [
            {"tokens": [row.part.start, row.part.stop]} | _size(row) for row in report.head_shards
        ],
        "head_outputs": plan.head_outputs.value,
        "head_bytes": head_bytes(*_head_sizes(plan)),
        "experts": None
        if plan.experts is None
        else {"form": plan.experts.form.value, "reason": plan.experts.reason},
        "weight_bytes": report.total_bytes,
        "process_bytes": report.process_bytes,
        "state_bytes": plan.state_bytes(),
        "kv_traffic": [
            {
                "kv_form": each.form.value,
                "context": each.context,
                "written_bytes": each.written,
                "touched_bytes": each.touched,
                "share_of_pass": round(each.share, 4),
            }
            for context in contexts_beside(plan)
            for each in kv_traffic(plan, context)
        ],
        "preset": preset.preset.model_dump(mode="json") | {"differences": list(preset.differences)}
        if preset
        else None,
        "predicted": describe_forecast(plan),
        "reasons": list(report.reasons),
        "first_use": _first_use(plan),
        "warnings": list(report.warnings),
    }


def _size(row: "ShardRow") -> dict[str, Any]:
    return {"bytes": row.bytes, "size_range": size_range_facts(row.size_range)}


def size_range_facts(size_range: "SizeRange") -> dict[str, Any]:
    """Return a size range for --json."""
    return {
        "at_least": size_range.at_least,
        "outlook": size_range.outlook.value,
        "finding": size_range.finding,
        "grade": size_range.grade,
        "source": size_range.source,
    }


def show_plan(plan: "ConversionPlan") -> None:
    """Print the plan: shards, the cost of K/V, the totals, the reasons, and the warnings with their fixes."""
    from anespec.convert.planning.report import explain

    report = explain(plan.sharding)
    out().print()
    out().print(_shard_table(report))
    out().print()
    out().print(_kv_table(plan))
    out().print()
    experts = None if plan.experts is None else plan.experts.reason
    for sentence in (_memory_sentence(plan, report), experts, *report.reasons, _head(plan), _first_use(plan)):
        if sentence is not None:
            out().print(f"- {sentence}")
    for warning in report.warnings:
        out().print(f"warning: {warning}", style="yellow")


def _head_sizes(plan: "ConversionPlan") -> tuple[int, int, int]:
    """Return the rows of a decoding pass, the tokens of the vocabulary, and the number of its slices."""
    from anespec.convert.planning.topology import head_slices

    slices = sum(len(head_slices(tokens)) for tokens in plan.topology.heads)
    return plan.options.block, plan.model.facts.vocabulary, slices


def _head(plan: "ConversionPlan") -> str | None:
    """Return a sentence about the bytes that a pass returns; None for a processor, which shares the host's
    memory."""
    on_engine = plan.options.target is not Target.CPU
    return head_sentence(*_head_sizes(plan), plan.head_outputs) if on_engine else None


def _first_use(plan: "ConversionPlan") -> str | None:
    from anespec.convert.planning.report import first_use

    return first_use(plan.options.target, plan.passes.shapes, plan.passes.widths)


def _shard_table(report: "PlanReport") -> Table:
    table = Table(box=None)
    table.add_column("shard", no_wrap=True)
    for title in ("holds", "weights", "what is known of this size (predicted, not measured here)"):
        table.add_column(title)
    for row in report.layer_shards:
        last = row.part.stop - 1
        holds = f"layers {row.part.start} to {last}" if last > row.part.start else f"layer {last}"
        table.add_row(holds, row.kinds, bytes_text(row.bytes), str(row.size_range))
    widest = max(report.head_shards, key=lambda row: len(row.part))
    narrowest = min(report.head_shards, key=lambda row: len(row.part))
    widths = f"{len(narrowest.part)}" + (
        f" to {len(widest.part)}" if len(widest.part) > len(narrowest.part) else ""
    )
    count = len(report.head_shards)
    table.add_row(
        "head" if count == 1 else f"head x {count}",
        f"{widths} token" if widths == "1" else f"{widths} tokens",
        bytes_text(widest.bytes),
        str(widest.size_range),
    )
    return table


def _kv_table(plan: "ConversionPlan") -> Table:
    """Return a table of the bytes of K/V that a decoding pass moves in each form, also at shorter
    contexts."""
    from anespec.convert.planning.kv_traffic import contexts_beside, kv_traffic

    here, *shorter = (kv_traffic(plan, context) for context in contexts_beside(plan))
    table = Table(box=None)
    table.add_column("K/V form", no_wrap=True)
    for title in (
        f"writes a pass at {plan.context}",
        "touches (counted, not measured)",
        "of a pass's bytes",
        *(f"touches at {at_context[0].context}" for at_context in shorter),
    ):
        table.add_column(title)
    for number, each in enumerate(here):
        chosen = " (chosen)" if each.form is plan.kv_form else ""
        touched = (bytes_text(at_context[number].touched) for at_context in shorter)
        table.add_row(
            f"{each.form}{chosen}",
            bytes_text(each.written),
            bytes_text(each.touched),
            f"{each.share:.0%}",
            *touched,
        )
    return table


def _memory_sentence(plan: "ConversionPlan", report: "PlanReport") -> str:
    from anespec.convert.planning.shard_limits import PROCESS_EVIDENCE

    sentence = (
        f"{bytes_text(report.total_bytes)} of weights and {bytes_text(plan.state_bytes())} of KV state "
        f"({plan.options.sequences} x {plan.context} slots) in memory"
    )
    if report.process_bytes is None:
        return f"{sentence}."
    return (
        f"{sentence}; one process holds about {bytes_text(report.process_bytes)} of weights on the Neural "
        f"Engine ({PROCESS_EVIDENCE})."
    )
