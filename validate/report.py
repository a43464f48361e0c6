"""Format the gates' verdicts as tables and lines for a terminal."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from anespec.manifests.residency import (
    DeviceTotals,
    Placement,
    PlanSource,
    ResidencyVerdict,
    RuleFinding,
    Severity,
    ShardResidency,
)
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.verdicts import (
    OPTIONAL,
    REQUIRED_FOR_SPECULATION,
    ExactnessVerdict,
    Status,
    invariance_words,
)
from anespec.system.formatting import counted, listed
from anespec.validate.golden.figures import GoldenVerdict
from anespec.validate.quality.verdict import QualityVerdict

STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.REPORTED: "cyan",
    Status.NO_CASES: "dim",
    Status.NOT_RUN: "yellow",
}
"""The style of each status in a terminal."""

MAX_NAMES = 3
"""The most shards that a line names."""

MAX_OPERATIONS = 5
"""The most operations off the Neural Engine that are shown per shard; --json has more."""


def residency_parts(verdict: ResidencyVerdict, target: Target, decides: bool) -> list[RenderableType]:
    """Return the report on residency; one line if it decides nothing and the artifact is for the CPU."""
    if target is Target.CPU and not decides:
        on_ane = len(verdict.shards) - len(verdict.off_ane)
        return [
            f"{on_ane} of {counted(len(verdict.shards), 'shard')} {verdict.source} on the Neural Engine, "
            "which does not matter: this artifact was converted with --target cpu"
        ]
    parts: list[RenderableType] = [residency_table(verdict), *residency_lines(verdict)]
    if not verdict.passed and not decides:
        parts.append("A prediction does not fail the run; with --require-residency it does.")
    return parts


def residency_table(verdict: ResidencyVerdict) -> Table:
    """Return a table with a row per shard: how many operations, and convs among them, run on each device."""
    c = verdict.circumstances
    origin = {
        PlanSource.PREDICTED: f"predicted by rules, version {c.library_version}",
        PlanSource.MEASURED: f"measured with {c.library_version} on {c.machine}",
        PlanSource.REPLAYED: f"replayed from {c.library_version} on {c.machine}",
    }[verdict.source]
    table = _table(f"{origin}, at T = {verdict.block}", ("shard", "compute", "conv"))
    for shard in verdict.shards:
        on_ane = shard.placement is Placement.ANE
        mark = Text(f"{verdict.source} {shard.placement}", style="green" if on_ane else "bold red")
        table.add_row(_stem(shard.shard), _devices(shard.compute), _devices(shard.conv), mark)
    return table


def residency_lines(verdict: ResidencyVerdict) -> list[Text]:
    """Return what is not on the Neural Engine, why, and how to fix it; then the warnings, a line per rule."""
    lines = [line for shard in verdict.off_ane for line in _shard_lines(shard, verdict.source)]
    off_ane = {shard.shard for shard in verdict.off_ane}
    failing = [f for f in verdict.findings if f.severity is Severity.FAIL and f.shard in off_ane]
    warning = [f for f in verdict.findings if f.severity is Severity.WARN]
    lines += [Text(f"rule: {text}", style="red") for text in _by_rule(failing)]
    return lines + [Text(f"warning: {text}", style="yellow") for text in _by_rule(warning)]


def _shard_lines(shard: ShardResidency, source: PlanSource) -> list[Text]:
    """Return what a plan reports of a shard; none for a prediction, whose rules are listed instead."""
    name = _stem(shard.shard)
    lines: list[Text] = []
    if source is not PlanSource.PREDICTED:
        if shard.refusal is not None:
            lines.append(Text(f"{name}: {shard.refusal}", style="red"))
        lines += [Text(f"{name}: {operation}", style="red") for operation in shard.off_ane[:MAX_OPERATIONS]]
        if (more := shard.compute.off_ane - MAX_OPERATIONS) > 0:
            lines.append(
                Text(f"{name}: and {counted(more, 'more operation')} off the Neural Engine", style="red")
            )
    return lines


def _by_rule(findings: Sequence[RuleFinding]) -> list[str]:
    """Return a line per rule: its shards, its first finding, the number of similar findings, and the fix."""
    lines = []
    for rule in dict.fromkeys(finding.rule for finding in findings):
        first, *others = [finding for finding in findings if finding.rule == rule]
        shards = list(dict.fromkeys(_stem(f.shard) for f in (first, *others) if f.shard))
        where = f" in {listed(_shortened(shards, 'shard'))}" if shards else ""
        more = f" (and {len(others)} more like it)" if others else ""
        lines.append(f"{rule}{where}: {first.subject}: {first.detail}{more}; {first.mend}")
    return lines


def _shortened(names: Sequence[str], noun: str) -> list[str]:
    """Return the first names, and in words how many more there are."""
    left = len(names) - MAX_NAMES
    return [*names[:MAX_NAMES], *([counted(left, f"other {noun}")] if left > 0 else [])]


def _stem(shard: str) -> str:
    return PurePosixPath(shard).stem


def _devices(totals: DeviceTotals) -> str:
    counts = (("ane", totals.ane), ("gpu", totals.gpu), ("cpu", totals.cpu), ("none", totals.none))
    return ", ".join(f"{count} {device}" for device, count in counts if count) or "-"


def golden_tables(verdict: GoldenVerdict) -> tuple[Table, Table, Table]:
    """Return tables of the stored weights by format, of every shard alone, and of the whole stack.

    The first shows the worst tensor of each format.
    """
    weights = _table("stored weights, by format", ("format", "tensors", "worst tensor", "error", "claimed"))
    for weight_format in WeightFormat:
        stored = [w for w in verdict.weights if w.weights is weight_format]
        if stored:
            worst = max(stored, key=lambda w: (not w.sound, w.error))
            figures = (worst.tensor, f"{worst.error:.5f}", f"{worst.claimed:.5f}")
            weights.add_row(weight_format, str(len(stored)), *figures, _judged(worst.sound))
    shards = _table("every shard alone", ("shard", "stimulus", "tokens", "cosine", "error", "limit"))
    for s in verdict.shards:
        shards.add_row(
            PurePosixPath(s.shard).stem,
            s.stimulus,
            str(s.tokens),
            f"{s.cosine:.6f}",
            f"{s.error:.4f}",
            f"{s.limit:.4f}",
            _judged(s.within),
        )
    stack = _table(
        "all shards together",
        ("prompt\ntokens", "cosine", "error", "limit", "greedy\nequal", "leading", "worst\nmargin"),
    )
    for p in verdict.stack:
        stack.add_row(
            str(p.prompt_tokens),
            f"{p.cosine:.6f}",
            f"{p.error:.4f}",
            f"{p.limit:.4f}",
            f"{p.agreeing} of {p.greedy_tokens}",
            str(p.leading),
            f"{p.worst_margin:.3f}",
            _judged(p.within),
        )
    return weights, shards, stack


def exactness_table(verdict: ExactnessVerdict) -> Table:
    """Return a table with a row per invariance; those that speculation does not need are optional."""
    c = verdict.circumstances
    table = _table(
        f"the {verdict.form} form, on {c.backend} {c.library_version} with {counted(c.threads, 'thread')}",
        ("invariance", "cases", "unequal", "largest\ndifference"),
    )
    for v in verdict.invariances:
        required = v.invariance in REQUIRED_FOR_SPECULATION
        table.add_row(
            v.invariance if required else f"{v.invariance} (optional)",
            str(v.cases),
            str(v.unequal),
            f"{v.largest_difference:.4g}",
            Text(invariance_words(v.invariance, v.standing), style=_mark(v.standing, required).style),
        )
    captions = [equal_widths(verdict)] if verdict.proven_widths else []
    if verdict.left_out:
        captions.append(f"cases drawn with seed {verdict.seed}: {'; '.join(verdict.left_out)}")
    if captions:
        table.caption, table.caption_justify = "\n".join(captions), "left"
    return table


def equal_widths(verdict: ExactnessVerdict) -> str:
    """Return which numbers of rows gave equal bits, and how much a quick form proves."""
    found = f"passes of {listed(list(map(str, verdict.proven_widths)))} rows leave the same bits"
    if verdict.form == "full":
        return found
    return f"{found} in the quick form, which proves nothing of passes of fewer rows than a block"


def exactness_lines(verdict: ExactnessVerdict) -> list[str]:
    """Return the first difference of each failed invariance, and which of them are optional."""
    lines = [f"{v.invariance}, the first difference: {v.detail}" for v in verdict.invariances if v.detail]
    unproven = [i.value for i in OPTIONAL if verdict.standing_of(i) is Status.FAIL]
    if unproven:
        are = "is" if len(unproven) == 1 else "are"
        lines.append(
            f"{listed(unproven)} {are} not proven, so the runtime does without; speculation needs "
            f"{listed([i.value for i in REQUIRED_FOR_SPECULATION])} alone"
        )
    return lines


def quality_table(verdict: QualityVerdict) -> Table:
    """Return a table with a row per figure and its unit; the last column is the verdict by the limit."""
    figures, kl = verdict.figures, verdict.figures.kl
    table = _table(
        f"{counted(verdict.text.scored, 'token')} of {verdict.text.name}, in windows of up to "
        f"{verdict.text.window}",
        ("figure", "value", "limit"),
    )
    over_kl = verdict.max_kl is not None and kl.mean > verdict.max_kl
    growth = verdict.max_perplexity_change
    over_growth = growth is not None and figures.perplexity_change > growth
    table.add_row(
        "mean KL divergence", f"{kl.mean:.3g}{_plus_minus(kl.standard_error, '.2g')} nats",
        *_limit(verdict.max_kl, over_kl, "nats"),
    )  # fmt: skip
    table.add_row("median, 95 %, 99 %", f"{kl.median:.3g}, {kl.p95:.3g}, {kl.p99:.3g} nats")
    table.add_row("largest", f"{kl.largest:.3g} nats")
    table.add_row("same likeliest token", f"{100 * figures.top1_agreement:.2f} %")
    table.add_row("five likeliest shared", f"{100 * figures.top5_agreement:.2f} %")
    table.add_row("perplexity, reference", f"{figures.reference_perplexity:.4f}")
    table.add_row("perplexity, artifact", f"{figures.artifact_perplexity:.4f}")
    table.add_row(
        "perplexity change",
        f"{figures.perplexity_change:+.3f}{_plus_minus(figures.perplexity_change_error, '.3f')} %",
        *_limit(growth, over_growth, "%"),
    )
    if figures.not_finite:
        table.add_row("logits not finite", str(figures.not_finite), "0", _judged(False))
    return table


def _plus_minus(error: float | None, form: str) -> str:
    return "" if error is None else f" ± {error:{form}}"


def _limit(limit: float | None, exceeded: bool, unit: str) -> tuple[str, Text]:
    return ("-", _mark(Status.REPORTED)) if limit is None else (f"{limit:g} {unit}", _judged(not exceeded))


def _table(title: str, columns: tuple[str, ...]) -> Table:
    # Headings have explicit line breaks, since rich would fold figures before headings.
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    return table


def _mark(standing: Status, needed: bool = True) -> Text:
    """Return a status in its colour; a failure that nothing depends on is yellow."""
    styles = STYLES if needed else {**STYLES, Status.FAIL: "yellow"}
    return Text(standing, style=styles[standing])


def _judged(good: bool) -> Text:
    return _mark(Status.PASS if good else Status.FAIL)
