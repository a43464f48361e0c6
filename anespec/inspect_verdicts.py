"""What `inspect` says of an artifact's verdicts: every recorded one, what it found, and where that holds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from anespec.manifests.residency import ResidencyVerdict
    from anespec.manifests.schema import Manifest
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import ExactnessVerdict, Verdict
    from anespec.validate.quality.verdict import QualityVerdict


def recorded_verdicts(artifact: "Artifact") -> list[dict[str, Any]]:
    """Every recorded verdict for a program, in the order of the gates.

    `decides` is false for what fails no run: a residency verdict that is only predicted.
    """
    return list(_verdicts(artifact))


def _verdicts(artifact: "Artifact") -> Iterator[dict[str, Any]]:
    from anespec.manifests.residency import ResidencyFile
    from anespec.manifests.verdicts import ExactnessFile
    from anespec.validate.figures import GoldenFile
    from anespec.validate.quality.verdict import QualityFile
    from anespec.validate.residency.verdict import decides

    for residency in artifact.read_verdicts(ResidencyFile).verdicts:
        finding = _residency_finding(residency, artifact.manifest)
        yield _facts("residency", residency, residency.passed, finding, decides(residency, False))
    for golden in artifact.read_verdicts(GoldenFile).verdicts:
        finding = "; ".join(golden.failures) or "every shard computes what the GGUF means"
        yield _facts("golden", golden, golden.passed, finding)
    for exactness in artifact.read_verdicts(ExactnessFile).verdicts:
        yield _facts("exactness", exactness, exactness.allows_speculation, _exactness_finding(exactness))
    for quality in artifact.read_verdicts(QualityFile).verdicts:
        yield _facts("quality", quality, quality.passed, _quality_finding(quality))


def _residency_finding(verdict: "ResidencyVerdict", manifest: "Manifest") -> str:
    from anespec.manifests.schema import Target

    shards = len(verdict.shards)
    found = f"{verdict.source}: {shards - len(verdict.off_ane)} of {shards} shards on the Neural Engine"
    return found + ("; of no matter for --target cpu" if manifest.target is Target.CPU else "")


def _exactness_finding(verdict: "ExactnessVerdict") -> str:
    proven = [v.invariance.value for v in verdict.invariances if v.proven]
    refuted = [v.invariance.value for v in verdict.invariances if not v.proven]
    return f"proven: {', '.join(proven) or 'nothing'}" + (
        f"; not proven: {', '.join(refuted)}" if refuted else ""
    )


def _quality_finding(verdict: "QualityVerdict") -> str:
    figures, text = verdict.figures, verdict.text
    measured = (
        f"{text.scored} tokens of {text.name}: mean KL divergence {figures.kl.mean:.3g} nats, perplexity "
        f"{figures.reference_perplexity:.5g} became {figures.artifact_perplexity:.5g}"
    )
    return "; ".join([measured, *verdict.failures])


def _facts(
    gate: str, verdict: "Verdict", passed: bool, finding: str, decisive: bool = True
) -> dict[str, Any]:
    here = verdict.circumstances
    return {
        "gate": gate,
        "passed": passed,
        "decides": decisive,
        "finding": finding,
        "backend": here.backend,
        "library_version": here.library_version,
        "machine": here.machine,
        "threads": here.threads,
        "measured_at": verdict.measured_at.isoformat(),
    }


def verdict_table(verdicts: list[dict[str, Any]]) -> Table:
    """The verdicts for a person, one a row."""
    table = Table("gate", "verdict", "found", "where", box=None)
    for verdict in verdicts:
        word, colour = _verdict_word(verdict)
        table.add_row(verdict["gate"], word, verdict["finding"], _where(verdict), style=colour)
    return table


def _verdict_word(verdict: dict[str, Any]) -> tuple[str, str]:
    if verdict["passed"]:
        return "passed", "green"
    return ("red", "red") if verdict["decides"] else ("noted", "yellow")


def _where(verdict: dict[str, Any]) -> str:
    if verdict["machine"] == "any":
        return f"{verdict['backend']} version {verdict['library_version']}, anywhere"
    threads = "1 thread" if verdict["threads"] == 1 else f"{verdict['threads']} threads"
    return f"{verdict['backend']} {verdict['library_version']}, {threads}, {verdict['machine']}"
