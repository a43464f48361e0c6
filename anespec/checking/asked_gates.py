"""Define the gates of `validate`: how each finds a recorded verdict, measures a new one, and shows it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from anespec.manifests.verdicts import VerdictT

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anespec.manifests.residency import ResidencyVerdict
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import ExactnessVerdict, RunEnvironment, Status, Verdict
    from anespec.runtime.backends.worker.sharing import WorkerLimits
    from anespec.system.progress import Progress
    from anespec.validate.exactness.effort import Form
    from anespec.validate.golden.figures import GoldenVerdict
    from anespec.validate.quality.gate import SampleText
    from anespec.validate.quality.verdict import QualityTask, QualityVerdict


_FULL_VERDICT_NOTE = (
    "the full verdict stays, since it tested more than the quick one; leave out --quick to measure again"
)


@dataclass(frozen=True)
class Answer:
    """The result of a gate: its status, what to show on the terminal, and its data for programs.

    `require` raises an error if the gate failed. If `decides` is False, the verdict is only shown.
    """

    verdict: "Verdict"
    standing: "Status"
    shown: "Callable[[], Sequence[RenderableType]]"
    require: Callable[[], None]
    decides: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gate(Generic[VerdictT]):
    """A gate. `kept` returns a recorded verdict that still holds; `measure` makes a new one and records
    it."""

    kept: "Callable[[], VerdictT | None]"
    measure: "Callable[[Progress], VerdictT]"
    answer: Callable[[VerdictT], Answer]


@dataclass(frozen=True)
class Question:
    """The facts that every gate needs: the artifact, its backend, and the path of its GGUF."""

    artifact: "Artifact"
    backend: str
    threads: int | None
    gguf: Path | None
    workers: "WorkerLimits | None" = None

    @property
    def here(self) -> "RunEnvironment":
        """Return the environment that this run's verdicts hold for."""
        from anespec.runtime.backends import circumstances

        return circumstances(self.artifact, self.backend, self.threads)

    @cached_property
    def source(self) -> Path:
        """Return the artifact's GGUF, identified by its hash; hashing a large file takes seconds."""
        from anespec.validate.gates import find_source

        return find_source(self.artifact, self.gguf)


def residency_gate(
    asked: Question, required: bool, replay: Path | None, record: Path | None
) -> "Gate[ResidencyVerdict]":
    """Return the residency gate. It reads the compute plan anew if the plan is replayed or recorded."""
    from anespec.validate.residency import compute_plan, gate
    from anespec.validate.residency.gate import decides, require_residency

    artifact, coreml = asked.artifact, compute_plan.neural_engine()

    def answer(verdict: "ResidencyVerdict") -> Answer:
        from anespec.manifests.verdicts import Status
        from anespec.validate.report import residency_parts

        does_decide = decides(verdict, required)
        standing = verdict.standing
        if does_decide:
            standing = Status.PASS if verdict.passed else Status.FAIL
        facts = {"source": verdict.source.value}

        def shown() -> "Sequence[RenderableType]":
            return residency_parts(verdict, artifact.manifest.target, does_decide)

        return Answer(
            verdict,
            standing,
            shown,
            lambda: require_residency(verdict),
            does_decide,
            facts,
            warnings=compute_plan.plan_caveats(artifact.manifest, verdict),
        )

    def kept() -> "ResidencyVerdict | None":
        from anespec.validate.kept import kept_residency

        is_new = replay is not None or record is not None
        return None if is_new else kept_residency(artifact, coreml)

    def measure(report: "Progress") -> "ResidencyVerdict":
        from anespec.system.progress import in_steps

        steps = in_steps(report, 1 + len(artifact.manifest.shards))
        return gate.residency_gate(artifact, steps, coreml, replay, record)

    return Gate(kept, measure, answer)


def golden_gate(asked: Question) -> "Gate[GoldenVerdict]":
    """Return the golden gate: do the shards compute what the GGUF means?"""
    artifact, here = asked.artifact, asked.here

    def answer(verdict: "GoldenVerdict") -> Answer:
        from anespec.validate.golden.figures import require_golden
        from anespec.validate.report import golden_tables

        facts = {"failures": list(verdict.failures)}
        return Answer(
            verdict,
            verdict.standing,
            lambda: [*golden_tables(verdict)],
            lambda: require_golden(verdict),
            facts=facts,
        )

    def kept() -> "GoldenVerdict | None":
        from anespec.validate.kept import kept_golden

        return kept_golden(artifact, here)

    def measure(report: "Progress") -> "GoldenVerdict":
        from anespec.validate import gates

        report("reading the source")
        return gates.golden_gate(artifact, asked.source, asked.backend, asked.threads, report, asked.workers)

    return Gate(kept, measure, answer)


def exactness_gate(asked: Question, form: "Form") -> "Gate[ExactnessVerdict]":
    """Return the exactness gate; a recorded full verdict also serves a quick run."""
    artifact, here = asked.artifact, asked.here

    def answer(verdict: "ExactnessVerdict") -> Answer:
        from anespec.manifests.verdicts import Invariance
        from anespec.validate.exactness.gate import require_exactness
        from anespec.validate.report import exactness_lines, exactness_table

        facts = {
            "form": verdict.form,
            "invariances": {i.value: verdict.standing_of(i).value for i in Invariance},
            "proven_widths": list(verdict.proven_widths),
            "proven_spans": [list(spans) for spans in verdict.proven_spans],
        }
        return Answer(
            verdict,
            verdict.standing,
            lambda: [exactness_table(verdict), *exactness_lines(verdict)],
            lambda: require_exactness(verdict),
            facts=facts,
            warnings=(_FULL_VERDICT_NOTE,) if verdict.form != form else (),
        )

    def kept() -> "ExactnessVerdict | None":
        from anespec.validate.kept import kept_exactness

        return kept_exactness(artifact, here, form)

    def measure(report: "Progress") -> "ExactnessVerdict":
        from anespec.manifests.verdicts import ExactnessFile
        from anespec.validate.gates import exactness_of

        measured = exactness_of(artifact, asked.backend, asked.threads, form, report, asked.workers)
        # The runtime uses the full verdict, unless a quick one refutes it.
        return artifact.read_verdicts(ExactnessFile).find(here) or measured

    return Gate(kept, measure, answer)


def quality_answer(verdict: "QualityVerdict") -> Answer:
    """Return the result of a quality verdict, judged by the limits that it was recorded with."""
    from anespec.validate.quality.verdict import require_quality
    from anespec.validate.report import quality_table

    figures = verdict.figures
    return Answer(
        verdict,
        verdict.standing,
        lambda: [quality_table(verdict)],
        lambda: require_quality(verdict),
        facts={
            "failures": list(verdict.failures),
            "tokens": verdict.text.scored,
            "reference_perplexity": figures.reference_perplexity,
            "perplexity": figures.artifact_perplexity,
            "perplexity_change_percent": figures.perplexity_change,
            "perplexity_change_error_percent": figures.perplexity_change_error,
        },
        warnings=(verdict.warning,) if verdict.warning else (),
    )


def quality_gate(asked: Question, task: "QualityTask", text: "SampleText") -> "Gate[QualityVerdict]":
    """Return the quality gate; recorded figures are judged by the limits of this run."""
    artifact, here = asked.artifact, asked.here

    def kept() -> "QualityVerdict | None":
        from anespec.validate.kept import kept_quality
        from anespec.validate.quality.verdict import QualityFile

        verdict = kept_quality(artifact, here, task, text.sha256)
        if verdict not in (None, artifact.read_verdicts(QualityFile).find(here)):
            artifact.record_verdict(QualityFile, verdict)
        return verdict

    def measure(report: "Progress") -> "QualityVerdict":
        from anespec.validate.quality import gate

        report("reading the source")
        source = asked.source
        return gate.quality_gate(
            artifact, source, task, text, asked.backend, asked.threads, report, asked.workers
        )

    return Gate(kept, measure, quality_answer)
