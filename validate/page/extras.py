"""Measure what the page shows beside the verdicts: a sample, and estimates of other weight formats."""

from pathlib import Path

from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile
from anespec.runtime.backends import circumstances
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.system.progress import StepReport
from anespec.validate.other_formats import FormatsFile, estimate_formats, formats_circumstances
from anespec.validate.sample.figures import SampleFile
from anespec.validate.sample.run import sample_run


def measure_extras(
    artifact: Artifact,
    source: Path | None,
    backend: str,
    threads: int | None,
    progress: StepReport,
    *,
    workers: WorkerLimits | None = None,
    again: bool = False,
) -> None:
    """Generate a sample here, estimate other weight formats, and record both.

    Recorded results are kept, unless `again` is set, or speculation was allowed or refused since. Without
    `source`, the GGUF, no formats are estimated and no reference reads the sample.

    Raises:
        AnespecError: the artifact cannot be loaded here, or its logits are not numbers.
        StorageError: a record cannot be written.
    """
    if again or not _has_sample(artifact, backend, threads):
        sample_run(artifact, source, backend, threads, progress, workers)
    if source is not None and (again or not _has_formats(artifact)):
        progress("other weight formats")
        estimate_formats(artifact, source)


def has_extras(artifact: Artifact, backend: str, threads: int | None) -> bool:
    """Return whether everything that `measure_extras` measures is recorded and still holds."""
    return _has_sample(artifact, backend, threads) and _has_formats(artifact)


def _has_sample(artifact: Artifact, backend: str, threads: int | None) -> bool:
    here = circumstances(artifact, backend, threads)
    exactness = artifact.read_verdicts(ExactnessFile).find(here)
    speculates = exactness is not None and exactness.allows_speculation
    sample = artifact.read_verdicts(SampleFile).find(here)
    return sample is not None and sample.speculated == speculates


def _has_formats(artifact: Artifact) -> bool:
    return artifact.read_verdicts(FormatsFile).find(formats_circumstances(artifact)) is not None
