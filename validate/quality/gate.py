"""The quality gate over an artifact on disk: read the text, score it, record."""

from pathlib import Path

from anespec.manifests.errors import RequestError
from anespec.manifests.gguf_file import GGUFFile
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.gates import require_layers
from anespec.validate.progress import Progress
from anespec.validate.quality.sample import SampleText
from anespec.validate.quality.scoring import compare_on_text, cut_windows
from anespec.validate.quality.verdict import (
    QualityFile,
    QualityTask,
    QualityVerdict,
    ScoredText,
    quality_verdict,
)
from anespec.validate.quality.worst import worst_tokens
from anespec.validate.reference import Reference


def quality_gate(
    artifact: Artifact,
    source: Path,
    task: QualityTask,
    sample: SampleText,
    backend: str,
    threads: int | None,
    progress: Progress,
    workers: WorkerLimits | None = None,
) -> QualityVerdict:
    """Score `sample`, which is the text of `task`, and record the verdict in gates/quality.json.

    A failed verdict does not raise. Passes are as wide as the exactness gate proved equal.

    Raises:
        RequestError: the text has less than two tokens.
        GGUFError: the source and the artifact disagree on sizes.
        StorageError: the verdict cannot be written.
    """
    limit, manifest = task.most_tokens, artifact.manifest
    here = circumstances(artifact, backend, threads)
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
    bos = tokenizer.bos_id if tokenizer.adds_bos else None
    windows = cut_windows(sample.tokens(tokenizer, limit), bos, manifest.context, limit)
    if not windows:
        raise RequestError(
            f"{task.text}: has less than two tokens, so there is none to predict; pass a longer text"
        )
    exactness = artifact.read_verdicts(ExactnessFile).find(here)
    widths = exactness.proven_widths if exactness is not None else ()
    with GGUFFile(source) as file:
        reference = Reference(file, manifest.context)
        require_layers(manifest, reference, source)
        progress("loading the shards", 0.0)
        verifier = open_verifier(artifact, backend, threads, workers)
        try:
            scored = compare_on_text(verifier, reference, windows, widths=widths, progress=progress)
        finally:
            verifier.close()
    text = ScoredText(
        name=sample.name,
        sha256=sample.sha256,
        scored=len(scored.kl),
        asked=limit,
        window=max(len(window.ids) for window in windows),
    )
    verdict = quality_verdict(here, text, scored, task, worst_tokens(tokenizer, windows, scored))
    artifact.record_verdict(QualityFile, verdict)
    return verdict
