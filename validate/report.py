"""The gates' tables for a terminal."""

from pathlib import PurePosixPath

from rich.table import Table
from rich.text import Text

from anespec.manifests.schema import WeightFormat
from anespec.manifests.verdicts import REQUIRED_FOR_SPECULATION, ExactnessVerdict
from anespec.validate.figures import GoldenVerdict


def golden_tables(verdict: GoldenVerdict) -> tuple[Table, Table, Table]:
    """Stored weights by format, then shards and the whole stack, a row each, with the worst's figures."""
    weights = _table("golden gate: stored weights", ("format", "tensors", "worst tensor", "error", "claimed"))
    for weight_format in WeightFormat:
        stored = [w for w in verdict.weights if w.weights is weight_format]
        if stored:
            worst = max(stored, key=lambda w: (not w.sound, w.error))
            figures = (worst.tensor, f"{worst.error:.5f}", f"{worst.claimed:.5f}")
            weights.add_row(weight_format, str(len(stored)), *figures, _mark(worst.sound))
    shards = _table("golden gate: shards", ("shard", "stimulus", "tokens", "cosine", "error", "max\nerror"))
    for s in verdict.shards:
        shards.add_row(
            PurePosixPath(s.shard).stem,
            s.stimulus,
            str(s.tokens),
            f"{s.cosine:.6f}",
            f"{s.error:.4f}",
            f"{s.max_error:.4f}",
            _mark(s.within(verdict.thresholds[s.weights])),
        )
    stack = _table(
        "golden gate: whole stack",
        ("prompt\ntokens", "cosine", "error", "max\nerror", "greedy\nequal", "leading", "worst\nmargin"),
    )
    for p in verdict.stack:
        stack.add_row(
            str(p.prompt_tokens),
            f"{p.cosine:.6f}",
            f"{p.error:.4f}",
            f"{p.max_error:.4f}",
            f"{p.agreeing} of {p.greedy_tokens}",
            str(p.leading),
            f"{p.worst_margin:.3f}",
            _mark(p.within(verdict.stack_thresholds)),
        )
    return weights, shards, stack


def exactness_table(verdict: ExactnessVerdict) -> Table:
    """One row per invariance; those that speculation does not need are marked as optional."""
    c = verdict.circumstances
    table = _table(
        f"exactness gate ({verdict.form}): {c.backend} {c.library_version}, {c.threads} threads",
        ("invariance", "cases", "unequal", "largest\ndifference", "first\ndifference"),
    )
    for v in verdict.invariances:
        required = v.invariance in REQUIRED_FOR_SPECULATION
        table.add_row(
            v.invariance if required else f"{v.invariance} (optional)",
            str(v.cases),
            str(v.unequal),
            f"{v.largest_difference:.4g}",
            v.detail,
            _mark(v.proven, required),
        )
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    # Names are broken by hand: rich would fold figures before it folds names.
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    return table


def _mark(good: bool, required: bool = True) -> Text:
    if good:
        return Text("green", style="green")
    return Text("red", style="bold red") if required else Text("not proven", style="yellow")
