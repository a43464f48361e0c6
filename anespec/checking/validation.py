"""Run the gates of `validate`, and summarise what the artifact may do on this machine."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anespec.checking.asked_gates import (
    Answer,
    Gate,
    Question,
    exactness_gate,
    golden_gate,
    quality_answer,
    quality_gate,
    residency_gate,
)
from anespec.manifests.verdicts import Status
from anespec.models.cache import is_gguf, resolve_artifact, sequences_to_run
from anespec.models.remote import fetched
from anespec.system.errors import AnespecError, ArtifactError, StorageError
from anespec.system.progress import SILENT, ProgressCallbacks

if TYPE_CHECKING:
    from anespec.manifests.store import Damage
    from anespec.runtime.backends.coreml.start_times import Starts
    from anespec.validate.options import ValidateOptions


ALONE = "exactness (one sequence)"
"""The exactness gate once more for a cached model, which `generate` and `chat` open for one sequence."""


@dataclass(frozen=True)
class GateResult:
    """The result of one gate: an answer or an error. `kept` means that a recorded verdict was reused."""

    name: str
    answer: Answer | None
    kept: bool
    seconds: float
    error: Exception | None = None

    @property
    def standing(self) -> Status:
        """Return the gate's status; a gate that raised an error counts as not run."""
        return Status.NOT_RUN if self.answer is None else self.answer.standing

    def require(self) -> None:
        """Raise an error if the gate failed."""
        if self.error is not None:
            raise self.error
        if self.answer is not None and self.answer.decides:
            self.answer.require()

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        facts: dict[str, Any] = {"name": self.name, "standing": self.standing.value}
        if self.answer is None:
            return facts | {"decides": True, "error": str(self.error)}
        verdict = self.answer.verdict
        facts |= {"decides": self.answer.decides, "kept": self.kept}
        facts |= {"measured_at": verdict.measured_at.isoformat(), "warnings": list(self.answer.warnings)}
        return facts | dict(self.answer.facts) | {"figures": verdict.model_dump(mode="json")}


@dataclass(frozen=True)
class Validation:
    """The results of all gates of a run.

    `summary` says in one sentence what the artifact may do here, according to this run; `report` is the page,
    None if it could not be written, for the reason in `report_error`. If there is `damage`, no gate was run.
    `starts` are the recorded times of starting the artifact, if there are any.
    """

    gates: tuple[GateResult, ...]
    summary: str
    report: Path | None
    report_error: AnespecError | None = None
    damage: "tuple[Damage, ...]" = ()
    starts: "Starts | None" = None

    @property
    def standing(self) -> Status:
        """Return the most important status of all gates."""
        return Status.deciding((result.standing for result in self.gates), Status.NOT_RUN)

    @property
    def passed(self) -> bool:
        """Return whether no gate failed."""
        try:
            self.require()
        except AnespecError:
            return False
        return True

    def require(self) -> None:
        """Raise an error if a gate failed.

        Raises:
            ArtifactError, StorageError: the artifact's files differ from its manifest.
            AnespecError: the error of the first failed gate, or the page could not be written.
        """
        if self.damage:
            raise type(self.damage[0].error)(self.summary)
        for result in self.gates:
            result.require()
        if self.report_error is not None:
            raise self.report_error

    def facts(self) -> dict[str, Any]:
        """Return all results as JSON-ready data."""
        facts: dict[str, Any] = {
            "gates": [result.facts() for result in self.gates],
            "standing": self.standing.value,
            "summary": self.summary,
            "damage": [damage.path for damage in self.damage],
            "start": None if self.starts is None else self.starts.expected.model_dump(mode="json"),
        }
        return facts if self.report is None else facts | {"report": str(self.report)}


def run_validation(
    path: Path,
    options: "ValidateOptions",
    watch: ProgressCallbacks = SILENT,
    on_result: Callable[[GateResult], None] = lambda _: None,
) -> Validation:
    """Run the gates one after another, and write the report page.

    `on_result` is called after each gate. If a gate raises an error, the error is its result, and the other
    gates still run.

    Raises:
        ArtifactError: the folder is not an artifact.
        RequestError: there is no such backend.
        StorageError: the text of the quality gate cannot be read.
    """
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact, damage_sentence, find_damage
    from anespec.runtime.backends import recorded_starts, resolve_backend
    from anespec.validate.page.write import write_page
    from anespec.validate.summary import KnownVerdicts, summary

    path = fetched(path, watch)
    root = resolve_artifact(
        path,
        watch=watch,
    )
    source = path if options.gguf is None and is_gguf(path) else options.gguf
    artifact = Artifact(root, KnownHashes(again=options.verify))
    backend = resolve_backend(options.backend, artifact.manifest.target)
    asked = Question(artifact, backend, options.threads, source, options.workers)
    asking = _asking(asked, options)
    damage = find_damage(artifact)
    results = []
    for name in asking if not damage else ():
        result = _ask(name, asking[name], options.again, watch)
        on_result(result)
        results.append(result)
    if damage:
        said = damage_sentence(artifact, damage)
        unasked = ArtifactError("the artifact is damaged")
        results = [GateResult(name, None, False, 0.0, unasked) for name in asking]
    else:
        # --gate selects single gates; only a run of all gates has additional content.
        if not options.gates:
            results += _on_record(asked, options, on_result)
            _measure_extras(asked, options.again, watch)
        answers = [result.answer for result in results if result.answer and result.name != ALONE]
        found = KnownVerdicts.found((answer.verdict for answer in answers), options.require_residency)
        said = summary(artifact, asked.here, found)
    report, unwritten = None, None
    try:
        report = write_page(artifact, asked.here, damage, options.require_residency)
    except AnespecError as error:
        unwritten = error
    starts = None if damage else recorded_starts(artifact, backend)
    return Validation(tuple(results), said, report, unwritten, damage, starts)


def _on_record(
    asked: Question, options: "ValidateOptions", on_result: Callable[[GateResult], None]
) -> list[GateResult]:
    """Return the recorded quality result, for a run of all gates that was given no text to score."""
    from anespec.validate.options import QUALITY
    from anespec.validate.quality.verdict import QualityFile

    verdict = asked.artifact.read_verdicts(QualityFile).find(asked.here)
    if options.quality is not None or verdict is None:
        return []
    result = GateResult(QUALITY, quality_answer(verdict), True, 0.0)
    on_result(result)
    return [result]


def _asking(asked: Question, options: "ValidateOptions") -> dict[str, Callable[[], Gate[Any]]]:
    """Return the functions that run the chosen gates, by name."""
    from anespec.manifests.store import Artifact
    from anespec.validate.options import EXACTNESS, GOLDEN, QUALITY, RESIDENCY

    artifact, form = asked.artifact, options.form
    asking: dict[str, Callable[[], Gate[Any]]] = {
        RESIDENCY: lambda: residency_gate(
            asked, options.require_residency, options.replay_plan, options.record_plan
        ),
        GOLDEN: lambda: golden_gate(asked),
        EXACTNESS: lambda: exactness_gate(asked, form),
    }
    if (few := sequences_to_run(artifact.root, None)) is not None:
        alone = replace(asked, artifact=Artifact(artifact.root, artifact.hashes, few))
        asking[ALONE] = lambda: exactness_gate(alone, form)
    if options.quality is not None:
        from anespec.validate.quality.gate import SampleText
        from anespec.validate.quality.verdict import QualityTask

        task = QualityTask(
            options.quality, options.quality_tokens, options.max_kl, options.max_perplexity_change
        )
        # Read the text first: the other gates may take an hour, and an unreadable text ends the run.
        text = SampleText.read(task.text)
        asking[QUALITY] = lambda: quality_gate(asked, task, text)
    wanted = {*options.chosen, *([ALONE] if EXACTNESS in options.chosen else [])}
    return {name: ask for name, ask in asking.items() if name in wanted}


def _ask(name: str, make: Callable[[], Gate[Any]], again: bool, watch: ProgressCallbacks) -> GateResult:
    started = time.monotonic()
    try:
        gate = make()
        verdict = None if again else gate.kept()
        kept = verdict is not None
        if verdict is None:
            with watch.shares(f"{name} gate") as report:
                verdict = gate.measure(report)
        return GateResult(name, gate.answer(verdict), kept, time.monotonic() - started)
    except BrokenPipeError:
        raise
    except Exception as error:
        return GateResult(name, None, False, time.monotonic() - started, error)


def _measure_extras(asked: Question, again: bool, watch: ProgressCallbacks) -> None:
    """Measure the additional content of the page; a failure does not affect the gates' results."""
    from anespec.validate.page.extras import has_extras, measure_extras

    if not again and has_extras(asked.artifact, asked.backend, asked.threads):
        return
    source: Path | None = None
    with contextlib.suppress(ArtifactError, StorageError):
        source = asked.source
    try:
        with watch.shares("sample for the page") as report:
            measure_extras(
                asked.artifact,
                source,
                asked.backend,
                asked.threads,
                report,
                workers=asked.workers,
                again=again,
            )
    except AnespecError as error:
        watch.note(f"the page has no sample ({error})")
