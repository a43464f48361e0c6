"""Summarise an artifact's recorded verdicts for `inspect`: each result, and where it holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from anespec.system.formatting import counted, listed

if TYPE_CHECKING:
    from anespec.manifests.residency import ResidencyVerdict
    from anespec.manifests.schema import Manifest
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import ExactnessVerdict, Status, Verdict, VerdictFile, VerdictT
    from anespec.validate.quality.verdict import QualityVerdict


@dataclass(frozen=True)
class RecordedVerdict:
    """The recorded result of one gate, and the backend and machine that it holds for.

    `decides` is False for a verdict that never makes `validate` fail: a residency verdict that is only
    predicted.
    """

    gate: str
    standing: str
    decides: bool
    finding: str
    backend: str
    library_version: str
    machine: str
    threads: int
    measured_at: str


def recorded_verdicts(artifact: "Artifact") -> tuple[RecordedVerdict, ...]:
    """Return the recorded verdicts on this artifact, in the order of the gates.

    Verdicts from before the artifact changed no longer hold, and are left out.
    """
    return tuple(_verdicts(artifact))


def _verdicts(artifact: "Artifact") -> Iterator[RecordedVerdict]:
    from anespec.manifests.residency import ResidencyFile
    from anespec.manifests.verdicts import ExactnessFile
    from anespec.validate.golden.figures import GoldenFile
    from anespec.validate.quality.verdict import QualityFile
    from anespec.validate.residency.gate import decides

    for residency in _of_now(artifact, ResidencyFile):
        finding = _residency_finding(residency, artifact.manifest)
        yield _recorded("residency", residency, residency.standing, finding, decides(residency, False))
    for golden in _of_now(artifact, GoldenFile):
        finding = "; ".join(golden.failures) or "every shard computes what the GGUF means"
        yield _recorded("golden", golden, golden.standing, finding)
    for exactness in _of_now(artifact, ExactnessFile):
        yield _recorded("exactness", exactness, exactness.standing, _exactness_finding(exactness))
    for quality in _of_now(artifact, QualityFile):
        yield _recorded("quality", quality, quality.standing, _quality_finding(quality))


def why_unjudged(artifact: "Artifact") -> str:
    """Return the reason why there are no verdicts: nothing was measured, or the artifact changed since."""
    stale = any(artifact.read_verdicts(kind).verdicts for kind in _kinds())
    judged = "No gate has judged it since it changed" if stale else "No gate has judged it yet"
    return f"{judged}: anespec validate {artifact.root}"


def unreadable_line(artifact: "Artifact") -> str | None:
    """Return a line that names unreadable files of verdicts; None if all can be read."""
    lost = artifact.unreadable_verdicts(_kinds())
    files = listed([f"gates/{gate}.json" for gate in lost])
    return (
        f"{files} cannot be read, so those gates count as not run: anespec validate {artifact.root}"
        if lost
        else None
    )


def _kinds() -> "tuple[type[VerdictFile[Any]], ...]":
    from anespec.manifests.residency import ResidencyFile
    from anespec.manifests.verdicts import ExactnessFile
    from anespec.validate.golden.figures import GoldenFile
    from anespec.validate.quality.verdict import QualityFile

    return (ResidencyFile, GoldenFile, ExactnessFile, QualityFile)


def _of_now(artifact: "Artifact", kind: "type[VerdictFile[VerdictT]]") -> "list[VerdictT]":
    verdicts = artifact.read_verdicts(kind).verdicts
    return [verdict for verdict in verdicts if verdict.circumstances.artifact == artifact.fingerprint]


def _residency_finding(verdict: "ResidencyVerdict", manifest: "Manifest") -> str:
    from anespec.manifests.schema import Target

    shards = counted(len(verdict.shards), "shard")
    on_ane = len(verdict.shards) - len(verdict.off_ane)
    found = f"{verdict.source}: {on_ane} of {shards} on the Neural Engine"
    return found + (", which does not matter with --target cpu" if manifest.target is Target.CPU else "")


def _exactness_finding(verdict: "ExactnessVerdict") -> str:
    """Group the invariances by status, as in `pass: lane; no cases: region`, and list the widths that are
    equal."""
    from anespec.manifests.verdicts import Invariance, Status, invariance_words
    from anespec.validate.report import equal_widths

    stands = {invariance: verdict.standing_of(invariance) for invariance in Invariance}
    groups: dict[str, list[str]] = {}
    for invariance in sorted(stands, key=lambda invariance: [*Status].index(stands[invariance])):
        groups.setdefault(invariance_words(invariance, stands[invariance]), []).append(invariance)
    found = [f"{words}: {', '.join(names)}" for words, names in groups.items()]
    widths = [equal_widths(verdict)] if verdict.proven_widths else []
    return "; ".join([*found, *widths, f"{verdict.form} form"])


def _quality_finding(verdict: "QualityVerdict") -> str:
    figures, text = verdict.figures, verdict.text
    measured = (
        f"{counted(text.scored, 'token')} of {text.name}: mean KL divergence {figures.kl.mean:.3g} nats, "
        f"perplexity {figures.reference_perplexity:.5g} became {figures.artifact_perplexity:.5g}"
    )
    return "; ".join([measured, *verdict.failures, *([verdict.warning] if verdict.warning else [])])


def _recorded(
    gate: str, verdict: "Verdict", standing: "Status", finding: str, decisive: bool = True
) -> RecordedVerdict:
    here = verdict.circumstances
    return RecordedVerdict(
        gate=gate,
        standing=standing.value,
        decides=decisive,
        finding=finding,
        backend=here.backend,
        library_version=here.library_version,
        machine=here.machine,
        threads=here.threads,
        measured_at=verdict.measured_at.isoformat(),
    )


def verdict_table(verdicts: Sequence[RecordedVerdict]) -> Table:
    """Return a table of the verdicts for the terminal, one in each row."""
    from anespec.manifests.verdicts import Status
    from anespec.validate.report import STYLES

    table = Table("gate", "verdict", "found", "where", box=None)
    for verdict in verdicts:
        style = STYLES[Status(verdict.standing)]
        table.add_row(verdict.gate, verdict.standing, verdict.finding, _where(verdict), style=style)
    return table


def _where(verdict: RecordedVerdict) -> str:
    if verdict.machine == "any":
        return f"{verdict.backend} version {verdict.library_version}, anywhere"
    threads = counted(verdict.threads, "thread")
    return f"{verdict.backend} {verdict.library_version}, {threads}, {verdict.machine}"
