"""`anespec validate`: the gates of an artifact."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.backend_options import backend_option, threads_option
from anespec.console import json_option, out, print_json, result_as_json, step_progress
from anespec.quality_options import quality_options, read_quality

if TYPE_CHECKING:
    from anespec.manifests.residency import ResidencyVerdict
    from anespec.manifests.schema import Target
    from anespec.manifests.verdicts import ExactnessVerdict
    from anespec.validate.figures import GoldenVerdict
    from anespec.validate.quality_figures import QualityVerdict

GATES = ("residency", "golden", "exactness")
QUALITY = "quality"
PLAN_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Check what ARTIFACT computes, where it runs, and whether it may speculate.")
@click.argument("artifact", type=click.Path(path_type=Path), required=False)
@backend_option
@threads_option
@click.option(
    "--gate",
    "gates",
    multiple=True,
    type=click.Choice((*GATES, QUALITY)),
    help="Run only this gate.  [default: all, quality where a text is given]",
)
@click.option("--gguf", type=click.Path(path_type=Path), help="The GGUF that was converted, if it has moved.")
@click.option("--quick", is_flag=True, help="The exactness gate's quick form: fewer cases, some seconds.")
@click.option("--require-residency", is_flag=True, help="Let a predicted residency verdict fail the run too.")
@click.option("--record-plan", type=PLAN_FILE, help="Write Core ML's plan to this file (on a Mac).")
@click.option("--replay-plan", type=PLAN_FILE, help="Judge a plan that was recorded on a Mac.")
@click.option("--explain", metavar="RULE", help="Explain a rule of the residency gate, or `all`, and exit.")
@quality_options
@json_option
def validate(
    artifact: Path | None,
    backend: str,
    threads: int | None,
    gates: tuple[str, ...],
    gguf: Path | None,
    quick: bool,
    require_residency: bool,
    record_plan: Path | None,
    replay_plan: Path | None,
    explain: str | None,
    as_json: bool,
    **quality_choice: Any,
) -> None:
    """Check that ARTIFACT computes what its GGUF means, and whether speculation leaves its text alone.

    \b
    residency  where each operation runs: Core ML's plan on a Mac, elsewhere predicted by rules
    golden     every shard, and all together, against an fp32 reference read from the GGUF
    exactness  six invariances, bit for bit; verdicts hold for this backend, its version and machine
    quality    with --quality TEXT: KL divergence and perplexity against the reference on a text

    Exits with 11, 12, 13 or 14 where the residency, golden, exactness or quality gate is red. Quality is
    a report, unless a limit is given. A residency verdict
    that is only predicted is shown and recorded; it fails the run with --require-residency.

    \b
    Example:
      anespec validate model.anespec --backend torch
      anespec validate model.anespec --quality book.txt --max-perplexity-change 1%
      anespec validate --explain small-shard
    """
    if explain is not None:
        _explain(explain, as_json)
        return
    if artifact is None:
        raise click.UsageError("Missing argument 'ARTIFACT'.")
    chosen = gates or GATES
    task = read_quality(quality_choice, gates)
    if "residency" not in chosen and (require_residency or record_plan or replay_plan):
        raise click.UsageError(
            "--require-residency, --record-plan and --replay-plan need the residency gate."
        )

    from anespec.manifests.store import Artifact
    from anespec.runtime.backends import resolve_backend
    from anespec.validate.exactness import require_exactness
    from anespec.validate.figures import require_golden
    from anespec.validate.gates import (
        find_source,
        golden_gate,
        quality_gate,
        recorded_exactness,
        residency_gate,
    )
    from anespec.validate.quality_figures import require_quality
    from anespec.validate.residency.compute_plan import neural_engine
    from anespec.validate.residency.verdict import decides
    from anespec.validate.residency.verdict import require_residency as require_residency_verdict

    opened, name = Artifact(artifact), resolve_backend(backend)
    residency: ResidencyVerdict | None = None
    golden: GoldenVerdict | None = None
    exactness: ExactnessVerdict | None = None
    quality: QualityVerdict | None = None
    with step_progress(f"validating {artifact} on {name}", shown=not as_json) as report:
        if "residency" in chosen:
            residency = residency_gate(
                opened, lambda note: report(f"residency: {note}"), neural_engine(), replay_plan, record_plan
            )
        if "golden" in chosen or task is not None:
            report("reading the source")
            source = find_source(opened, gguf)
        if "golden" in chosen:
            golden = golden_gate(opened, source, name, threads, lambda note: report(f"golden: {note}"))
        if "exactness" in chosen:
            exactness = recorded_exactness(
                opened,
                name,
                threads,
                "quick" if quick else "full",
                lambda note: report(f"exactness: {note}"),
            )
        if task is not None:
            quality = quality_gate(
                opened, source, task, name, threads, lambda note: report(f"quality: {note}")
            )
    residency_decides = residency is not None and decides(residency, require_residency)
    if not as_json:
        if residency is not None:
            _show_residency(residency, opened.manifest.target, residency_decides)
        _show(golden, exactness, quality)
    with result_as_json(_facts(residency, residency_decides, golden, exactness, quality), shown=as_json):
        if residency is not None and residency_decides:
            require_residency_verdict(residency)
        if golden is not None:
            require_golden(golden)
        if exactness is not None:
            require_exactness(exactness)
        if quality is not None:
            require_quality(quality)


def _facts(
    residency: "ResidencyVerdict | None",
    residency_decides: bool,
    golden: "GoldenVerdict | None",
    exactness: "ExactnessVerdict | None",
    quality: "QualityVerdict | None",
) -> dict[str, Any]:
    facts: list[dict[str, Any]] = []
    if residency is not None:
        facts.append({"name": "residency", "passed": residency.passed, "decides": residency_decides})
        facts[-1] |= {"source": residency.source.value, "figures": residency.model_dump(mode="json")}
    if golden is not None:
        facts.append({"name": "golden", "passed": golden.passed, "failures": list(golden.failures)})
        facts[-1] |= {"figures": golden.model_dump(mode="json")}
    if exactness is not None:
        proven = {v.invariance.value: v.proven for v in exactness.invariances}
        facts.append({"name": "exactness", "passed": exactness.allows_speculation, "proven": proven})
        facts[-1] |= {"figures": exactness.model_dump(mode="json")}
    if quality is not None:
        figures = quality.figures
        facts.append({"name": "quality", "passed": quality.passed})
        facts[-1] |= {
            "failures": list(quality.failures),
            "tokens": quality.text.scored,
            "reference_perplexity": figures.reference_perplexity,
            "perplexity": figures.artifact_perplexity,
            "perplexity_change_percent": figures.perplexity_change,
            "perplexity_change_error_percent": figures.perplexity_change_error,
            "figures": quality.model_dump(mode="json"),
        }
    return {"gates": facts, "passed": all(gate["passed"] or not gate.get("decides", True) for gate in facts)}


def _show_residency(verdict: "ResidencyVerdict", target: "Target", decides: bool) -> None:
    from anespec.manifests.schema import Target
    from anespec.validate.report import residency_lines, residency_table

    on_ane = len(verdict.shards) - len(verdict.off_ane)
    if target is Target.CPU and not decides:
        out().print(
            f"residency gate: {verdict.source} for {on_ane} of {len(verdict.shards)} shards; of no matter "
            "here, for this artifact was converted with --target cpu"
        )
        return
    out().print(residency_table(verdict))
    for line in residency_lines(verdict):
        out().print(line)
    if not verdict.passed and not decides:
        out().print("A prediction does not fail the run; --require-residency lets it.")


def _show(
    golden: "GoldenVerdict | None", exactness: "ExactnessVerdict | None", quality: "QualityVerdict | None"
) -> None:
    from anespec.validate.report import exactness_table, golden_tables, quality_table

    if golden is not None:
        for table in golden_tables(golden):
            out().print(table)
    if exactness is not None:
        out().print(exactness_table(exactness))
    if quality is not None:
        out().print(quality_table(quality))


def _explain(name: str, as_json: bool) -> None:
    from anespec.validate.residency.explanation import explained

    explanations = explained(name)
    if as_json:
        print_json({"rules": [explanation.facts() for explanation in explanations]})
        return
    for explanation in explanations:
        out().print(explanation.text(brief=name == "all"))
