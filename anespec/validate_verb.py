"""`anespec validate`: the gates of an artifact."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.asked_gates import (
    Answer,
    Gate,
    Question,
    exactness_gate,
    golden_gate,
    quality_gate,
    residency_gate,
)
from anespec.backend_options import backend_option, threads_option
from anespec.console import json_option, notes, out, print_json, result_as_json, timed_progress
from anespec.manifests.errors import (
    AnespecError,
    ArtifactError,
    Interrupted,
    RequestError,
    StorageError,
)
from anespec.manifests.formatting import duration_text
from anespec.quality_options import quality_options, read_quality

if TYPE_CHECKING:
    from anespec.manifests.verdicts import Standing

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
@click.option("--quick", is_flag=True, help="The exactness gate's quick form: few passes of each kind.")
@click.option("--again", is_flag=True, help="Measure also where a recorded verdict still holds.")
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
    again: bool,
    require_residency: bool,
    record_plan: Path | None,
    replay_plan: Path | None,
    explain: str | None,
    as_json: bool,
    **quality_choice: Any,
) -> None:
    """Check that ARTIFACT computes what its GGUF means, and whether speculation leaves its text alone.

    \b
    residency  where each operation runs: Core ML's plan on a Mac, elsewhere
               predicted by rules
    golden     every shard, and all together, against an fp32 reference read
               from the GGUF
    exactness  eight invariances, bit for bit; verdicts hold for this
               backend, its version, machine and threads
    quality    with --quality TEXT: KL divergence and perplexity on a text,
               against the reference

    Exits with 11, 12, 13 or 14 where the residency, golden, exactness or quality gate fails. A residency
    verdict that is only predicted is reported; it fails the run with --require-residency. Quality is
    reported, too, unless a limit is given. A verdict that was recorded and still holds is shown and not
    measured again. Every run ends with ARTIFACT/report.html and a sentence: what the artifact may do here.

    \b
    Example:
      anespec validate model.anespec --backend torch
      anespec validate model.anespec --quality book.txt --max-kl 0.01
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
    from anespec.validate.quality.sample import SampleText

    asked = Question(Artifact(artifact), resolve_backend(backend), threads, gguf)
    # The other gates may take an hour, so a text that cannot be read ends the run before them.
    text = SampleText.read(task.text) if task is not None else None
    asking: dict[str, Callable[[], Gate[Any]]] = {
        "residency": lambda: residency_gate(asked, require_residency, replay_plan, record_plan),
        "golden": lambda: golden_gate(asked),
        "exactness": lambda: exactness_gate(asked, "quick" if quick else "full"),
    }
    if task is not None and text is not None:
        asking["quality"] = lambda: quality_gate(asked, task, text)
    try:
        results = [_ask(name, asking[name], again, as_json) for name in GATES if name in chosen]
        # --gate asks for that gate only; what is no gate comes with a run of all.
        if not gates:
            _measure_extras(asked, again, as_json)
        _conclude(asked, results, as_json)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the verdicts of gates that ended are kept") from None


@dataclass(frozen=True)
class _Result:
    """What became of asking one gate: an answer, `kept` if it was not measured now, or an error."""

    name: str
    answer: Answer | None
    kept: bool
    seconds: float
    error: Exception | None = None

    @property
    def standing(self) -> "Standing":
        """How the gate stands; one that raised has not run."""
        from anespec.manifests.verdicts import Standing

        return Standing.NOT_RUN if self.answer is None else self.answer.standing

    def require(self) -> None:
        """Raise where this gate fails the run."""
        if self.error is not None:
            raise self.error
        if self.answer is not None and self.answer.decides:
            self.answer.require()

    def facts(self) -> dict[str, Any]:
        """The result for a program."""
        facts: dict[str, Any] = {"name": self.name, "standing": self.standing.value}
        if self.answer is None:
            return facts | {"decides": True, "error": str(self.error)}
        verdict = self.answer.verdict
        facts |= {"decides": self.answer.decides, "kept": self.kept}
        facts |= {"measured_at": verdict.measured_at.isoformat(), "warnings": list(self.answer.warnings)}
        return facts | dict(self.answer.facts) | {"figures": verdict.model_dump(mode="json")}


def _ask(name: str, make: Callable[[], Gate[Any]], again: bool, as_json: bool) -> _Result:
    """Ask one gate, and show what it says as soon as it has said it.

    An error becomes part of the result, so that the other gates are asked all the same.
    """
    started = time.monotonic()
    try:
        gate = make()
        verdict = None if again else gate.kept()
        kept = verdict is not None
        if verdict is None:
            with timed_progress(f"{name} gate", shown=not as_json) as report:
                verdict = gate.measure(report)
        result = _Result(name, gate.answer(verdict), kept, time.monotonic() - started)
    except BrokenPipeError:
        raise
    except Exception as error:
        result = _Result(name, None, False, time.monotonic() - started, error)
    if not as_json:
        _show(result)
    return result


def _show(result: _Result) -> None:
    from anespec.validate.report import STYLES

    console = out()
    console.print(_headline(result), style=STYLES[result.standing])
    if result.answer is not None:
        for part in result.answer.shown:
            console.print(part)
        for warning in result.answer.warnings:
            console.print(f"warning: {warning}", style="yellow")
    console.print()


def _headline(result: _Result) -> str:
    stands = f"{result.name} gate: {result.standing}"
    if result.answer is None:
        return f"{stands} ({result.error})"
    if not result.kept:
        return f"{stands} ({duration_text(result.seconds)})"
    then = result.answer.verdict.measured_at.astimezone()
    return f"{stands} (measured {then:%Y-%m-%d %H:%M}, nothing changed since; --again measures)"


def _measure_extras(asked: Question, again: bool, as_json: bool) -> None:
    """What the page shows beside the gates; where it cannot be had, the gates' answers stand all the same."""
    from anespec.validate.page.extras import has_extras, measure_extras

    if not again and has_extras(asked.artifact, asked.backend, asked.threads):
        return
    source: Path | None = None
    with contextlib.suppress(ArtifactError, StorageError):
        source = asked.source
    try:
        with timed_progress("sample for the page", shown=not as_json) as report:
            measure_extras(asked.artifact, source, asked.backend, asked.threads, report, again=again)
    except AnespecError as error:
        if not as_json:
            notes().print(f"note: the page goes without a sample ({error})", style="yellow")


def _conclude(asked: Question, results: Sequence[_Result], as_json: bool) -> None:
    """Write the page, say in one sentence what the artifact may do, and fail where a gate does."""
    from anespec.validate.page.write import write_page
    from anespec.validate.summary import summary

    facts: dict[str, Any] = {
        "gates": [result.facts() for result in results],
        "standing": _overall(result.standing for result in results).value,
        "summary": summary(asked.artifact, asked.here),
    }
    with result_as_json(facts, shown=as_json):
        unwritten: AnespecError | None = None
        try:
            facts["report"] = str(write_page(asked.artifact))
            if not as_json:
                out().print(f"All of it, in pictures: {facts['report']}")
        except AnespecError as error:
            unwritten = error
        if not as_json:
            out().print(facts["summary"])
        for result in results:
            result.require()
        if unwritten is not None:
            raise unwritten


def _overall(standings: "Iterable[Standing]") -> "Standing":
    """The one that matters most."""
    from anespec.manifests.verdicts import Standing

    found = set(standings)
    ranked = (Standing.FAIL, Standing.NOT_RUN, Standing.NO_CASES, Standing.PASS, Standing.REPORTED)
    return next(standing for standing in ranked if standing in found)


def _explain(name: str, as_json: bool) -> None:
    from anespec.validate.residency.explanation import explained

    try:
        explanations = explained(name)
    except RequestError as error:
        raise click.BadParameter(f"{error}.".replace("?.", "?"), param_hint="'--explain'") from None
    if as_json:
        print_json({"rules": [explanation.facts() for explanation in explanations]})
        return
    for explanation in explanations:
        out().print(explanation.text(brief=name == "all"))
