"""Make the subjects of benchmarks: an artifact from a GGUF, and passes of chosen width for its verifier."""

import re
from dataclasses import replace
from pathlib import Path

from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import (
    BEST_LOGIT,
    PassPlan,
    RowKind,
    Verifier,
    begin_rows,
    run_pass,
    whole_plan,
)
from anespec.runtime.rows import chain_rows
from anespec.runtime.spans import least_spans

ROOT = Path(__file__).resolve().parents[1]
ARTIFACTS = ROOT / "build" / "benchmarks"


def artifact_of(gguf: Path, options: ConvertOptions) -> Path:
    """Convert `gguf`, or return what an earlier benchmark converted with the same options."""
    form = f"-{options.kv_form}" if options.kv_form is not None else ""
    name = f"{options.target}-{options.weights}-b{options.block}-c{options.context}{form}"
    name = re.sub(r"\W+", "-", name)
    output = ARTIFACTS / f"{gguf.stem}-{name}.anespec"
    with GGUFFile(gguf) as file:
        convert(ConversionPlan(SourceModel(file), options), output, replace=True)
    return output


def pass_of(verifier: Verifier, tokens: list[int], position: int, *, wants_logits: bool = True) -> PassPlan:
    """Return the narrowest pass for rows of one sequence from `position` on, in the first region."""
    home = SlotMapping.of(verifier.shape)
    rows = chain_rows(home, 0, position, RowKind.PROMPT, tokens)
    width = next(width for width in verifier.shape.widths if len(rows) <= width)
    return whole_plan(verifier.shape, rows, width=width, wants_logits=wants_logits)


def narrowed(verifier: Verifier, plan: PassPlan) -> PassPlan:
    """Return the pass with spans no longer than its rows need, as the engine plans it."""
    return replace(plan, spans=least_spans(plan.rows, plan.width, verifier.shape))


def prefill(verifier: Verifier, tokens: list[int]) -> None:
    """Run a prompt from position 0 in the widest passes, with the best logit of its last token only."""
    home = SlotMapping.of(verifier.shape)
    for run in home.runs(range(len(tokens)), verifier.shape.t_max):
        begin_rows(verifier, 0, run.start)
        part = tokens[run.start : run.stop]
        plan = narrowed(verifier, pass_of(verifier, part, run.start, wants_logits=False))
        last = {len(part) - 1: BEST_LOGIT} if run.stop == len(tokens) else {}
        run_pass(verifier, replace(plan, wanted=last))
