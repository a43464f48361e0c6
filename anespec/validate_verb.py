"""`anespec validate`: the gates of an artifact."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.backend_options import backend_option, threads_option
from anespec.console import StepReport, json_option, notes, out, print_json, result_as_json, step_progress
from anespec.manifests.errors import AnespecError
from anespec.quality_options import quality_options, read_quality

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anespec.manifests.store import Artifact
    from anespec.validate.quality.verdict import QualityTask

GATES = ("residency", "golden", "exactness", "quality")
PLAN_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Check what ARTIFACT computes, where it runs, and whether it may speculate.")
@click.argument("artifact", type=click.Path(path_type=Path), required=False)
@backend_option
@threads_option
@click.option(
    "--gate",
    "gates",
    multiple=True,
    type=click.Choice(GATES),
    help="Run only this gate; may be given several times, and --quality adds its own.  [default: all]",
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
    quality    with --quality TEXT: KL divergence and perplexity on a text, against the reference

    Exits with 11, 12, 13 or 14 where the residency, golden, exactness or quality gate is red. A residency
    verdict that is only predicted is shown and recorded; it fails the run with --require-residency.
    Quality is a report, too, unless a limit is given. Every run ends with ARTIFACT/report.html.

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
    task = read_quality(quality_choice, gates)
    chosen = {*(gates or GATES[:-1]), *(["quality"] if task else [])}
    if "residency" not in chosen and (require_residency or record_plan or replay_plan):
        raise click.UsageError(
            "--require-residency, --record-plan and --replay-plan need the residency gate."
        )

    from anespec.manifests.store import Artifact
    from anespec.runtime.backends import resolve_backend
    from anespec.validate.page.write import write_page

    opened, name = Artifact(artifact), resolve_backend(backend)
    if task is not None:
        from anespec.validate.quality.sample import SampleText

        # The other gates may take an hour, so a text that cannot be read ends the run before them.
        SampleText.read(task.text)
    runs: dict[str, Callable[[StepReport], _Outcome]] = {
        "residency": lambda report: _residency(opened, require_residency, replay_plan, record_plan, report),
        "golden": lambda report: _golden(opened, gguf, name, threads, report),
        "exactness": lambda report: _exactness(opened, quick, name, threads, report),
    }
    if task is not None:
        runs["quality"] = lambda report: _quality(opened, task, gguf, name, threads, report)
    with step_progress(f"validating {artifact} on {name}", shown=not as_json) as report:
        outcomes = [_run(gate, runs[gate], report) for gate in GATES if gate in chosen]
        # --gate asks for one gate only; what is no gate comes with a run of all.
        if not gates:
            _extras(opened, gguf, name, threads, report)
    page = write_page(opened)
    if not as_json:
        for outcome in outcomes:
            for part in outcome.shown:
                out().print(part)
        out().print(f"All of it, in pictures: {page}")
    facts = {
        "gates": [outcome.facts for outcome in outcomes],
        "passed": all(outcome.facts["passed"] for outcome in outcomes if outcome.decides),
        "report": str(page),
    }
    with result_as_json(facts, shown=as_json):
        for outcome in outcomes:
            if outcome.decides:
                outcome.require()


@dataclass(frozen=True)
class _Outcome:
    """What one gate came to. `require` raises where it is red; one that does not decide is only shown."""

    facts: dict[str, Any]
    shown: "list[RenderableType]"
    require: Callable[[], None]
    decides: bool = True


def _run(gate: str, run: Callable[[StepReport], _Outcome], report: StepReport) -> _Outcome:
    return run(lambda note: report(f"{gate}: {note}"))


def _extras(
    artifact: "Artifact", gguf: Path | None, backend: str, threads: int | None, report: StepReport
) -> None:
    """What the page shows beside the gates; where it cannot be measured, a note, for it decides nothing."""
    from anespec.validate.page.extras import measure_extras

    try:
        measure_extras(artifact, gguf, backend, threads, lambda note: report(f"page: {note}"))
    except AnespecError as error:
        notes().print(f"note: {error}", style="yellow")


def _residency(
    artifact: "Artifact", required: bool, replay: Path | None, record: Path | None, report: StepReport
) -> _Outcome:
    from anespec.validate.report import residency_parts
    from anespec.validate.residency.compute_plan import neural_engine
    from anespec.validate.residency.gate import residency_gate
    from anespec.validate.residency.verdict import decides, require_residency

    verdict = residency_gate(artifact, report, neural_engine(), replay, record)
    does_decide = decides(verdict, required)
    facts = {"name": "residency", "passed": verdict.passed, "decides": does_decide}
    facts |= {"source": verdict.source.value, "figures": verdict.model_dump(mode="json")}
    shown = residency_parts(verdict, artifact.manifest.target, does_decide)
    return _Outcome(facts, shown, lambda: require_residency(verdict), does_decide)


def _golden(
    artifact: "Artifact", gguf: Path | None, backend: str, threads: int | None, report: StepReport
) -> _Outcome:
    from anespec.validate.figures import require_golden
    from anespec.validate.gates import find_source, golden_gate
    from anespec.validate.report import golden_tables

    report("reading the source")
    verdict = golden_gate(artifact, find_source(artifact, gguf), backend, threads, report)
    facts = {"name": "golden", "passed": verdict.passed, "failures": list(verdict.failures)}
    facts |= {"figures": verdict.model_dump(mode="json")}
    return _Outcome(facts, [*golden_tables(verdict)], lambda: require_golden(verdict))


def _exactness(
    artifact: "Artifact", quick: bool, backend: str, threads: int | None, report: StepReport
) -> _Outcome:
    from anespec.validate.exactness import require_exactness
    from anespec.validate.gates import recorded_exactness
    from anespec.validate.report import exactness_table

    verdict = recorded_exactness(artifact, backend, threads, "quick" if quick else "full", report)
    proven = {v.invariance.value: v.proven for v in verdict.invariances}
    facts = {"name": "exactness", "passed": verdict.allows_speculation, "proven": proven}
    facts |= {"figures": verdict.model_dump(mode="json")}
    return _Outcome(facts, [exactness_table(verdict)], lambda: require_exactness(verdict))


def _quality(
    artifact: "Artifact",
    task: "QualityTask",
    gguf: Path | None,
    backend: str,
    threads: int | None,
    report: StepReport,
) -> _Outcome:
    from anespec.validate.gates import find_source
    from anespec.validate.quality.gate import quality_gate
    from anespec.validate.quality.verdict import require_quality
    from anespec.validate.report import quality_table

    report("reading the source")
    verdict = quality_gate(artifact, find_source(artifact, gguf), task, backend, threads, report)
    figures = verdict.figures
    facts = {
        "name": "quality",
        "passed": verdict.passed,
        "failures": list(verdict.failures),
        "tokens": verdict.text.scored,
        "reference_perplexity": figures.reference_perplexity,
        "perplexity": figures.artifact_perplexity,
        "perplexity_change_percent": figures.perplexity_change,
        "perplexity_change_error_percent": figures.perplexity_change_error,
        "figures": verdict.model_dump(mode="json"),
    }
    return _Outcome(facts, [quality_table(verdict)], lambda: require_quality(verdict))


def _explain(name: str, as_json: bool) -> None:
    from anespec.validate.residency.explanation import explained

    explanations = explained(name)
    if as_json:
        print_json({"rules": [explanation.facts() for explanation in explanations]})
        return
    for explanation in explanations:
        out().print(explanation.text(brief=name == "all"))
