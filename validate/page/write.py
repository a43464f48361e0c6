"""Render report.html. Whatever an artifact says is text here: everything is escaped, nothing is loaded."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from anespec.manifests.errors import StorageError
from anespec.manifests.residency import ResidencyFile
from anespec.manifests.safe_files import write_atomically
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    ExactnessFile,
    Invariance,
    VerdictFile,
    VerdictT,
)
from anespec.manifests.wording import bytes_text, harmless
from anespec.validate.figures import GoldenFile
from anespec.validate.page.badges import exactness_badge, golden_badge, quality_badge, residency_badge
from anespec.validate.page.golden import view_golden
from anespec.validate.page.quality import view_changes, view_quality
from anespec.validate.page.residency import view_residency
from anespec.validate.page.shards import view_shards
from anespec.validate.page.weights import view_weights
from anespec.validate.quality.verdict import QualityFile

PAGE_NAME = "report.html"
TEMPLATES = Path(__file__).parent / "templates"


def write_page(artifact: Artifact) -> Path:
    """Write report.html into the artifact, as one step.

    Raises:
        StorageError: the artifact cannot be written.
    """
    path = artifact.root / PAGE_NAME
    try:
        write_atomically(path, render_page(artifact))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def render_page(artifact: Artifact) -> str:
    """The page as HTML, from the manifest and the verdicts that were measured on these very shards."""
    manifest = artifact.manifest
    residency = _current(artifact, ResidencyFile)
    golden = _current(artifact, GoldenFile)
    exactness = _current(artifact, ExactnessFile)
    quality = _current(artifact, QualityFile)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters["bytes"] = bytes_text
    return environment.get_template("page.jinja").render(
        manifest=manifest,
        for_cpu=manifest.target is Target.CPU,
        badges=(
            residency_badge(residency, manifest.target),
            golden_badge(golden),
            exactness_badge(exactness),
            quality_badge(quality),
        ),
        shards=view_shards(manifest),
        weights=view_weights(manifest.tensors),
        residency=[view_residency(verdict) for verdict in residency],
        golden=[view_golden(verdict) for verdict in golden],
        exactness=exactness,
        invariances=tuple(Invariance),
        required=REQUIRED_FOR_SPECULATION,
        quality=[view_quality(verdict) for verdict in quality],
        changes=view_changes(quality),
    )


def _finalized(value: object) -> object:
    """What the page says, without characters that turn lines around; markup of its own stays."""
    return harmless(value) if type(value) is str else value


def _current(artifact: Artifact, kind: type[VerdictFile[VerdictT]]) -> list[VerdictT]:
    """The verdicts on this artifact as it is, the newest first."""
    verdicts = artifact.read_verdicts(kind).verdicts
    mine = [v for v in verdicts if v.circumstances.artifact == artifact.fingerprint]
    return sorted(mine, key=lambda verdict: verdict.measured_at, reverse=True)
