"""The gates over an artifact on disk: find its source, run, record."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from anespec.manifests.errors import ArtifactError, GGUFError, RequestError
from anespec.manifests.gguf_file import GGUFFile
from anespec.manifests.residency import PlanSource, ResidencyFile, ResidencyVerdict
from anespec.manifests.schema import Manifest, Shard, Target
from anespec.manifests.store import Artifact, file_sha256
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance
from anespec.runtime.backends import circumstances, open_shard, open_verifier
from anespec.runtime.backends.feeds import Embedding, Feeds
from anespec.runtime.backends.runner import ShardRunner
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.exactness import exactness_gate
from anespec.validate.figures import GoldenFile, GoldenVerdict, golden_verdict
from anespec.validate.golden import check_shards, check_stack
from anespec.validate.quality import compare_on_text, cut_windows
from anespec.validate.quality_figures import (
    QualityFile,
    QualityTask,
    QualityVerdict,
    ScoredText,
    quality_verdict,
)
from anespec.validate.reference import Reference
from anespec.validate.residency.compute_plan import CoreML, measure_plan
from anespec.validate.residency.prediction import predict
from anespec.validate.residency.recorded_plan import record_plan, replay_plan
from anespec.validate.residency.shard_view import view_artifact
from anespec.validate.residency.verdict import residency_verdict
from anespec.validate.text_reference import TextReference
from anespec.validate.texts import SampleText

Progress = Callable[[str], None]

PROMPTS = (
    "Once upon a time, there was a little girl who liked to count. One, two, three, one, two, three,",
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return ",
    "The year 2024 had 366 days; the 5 % rule (see p. 17) is «ça va»: naïve, 日本語, 🙂.",
)
"""Prompts of the full stack: prose that repeats, code, and a mixture that byte fallback must carry."""


def find_source(artifact: Artifact, given: Path | None = None) -> Path:
    """The GGUF that the artifact was made from, recognised by its hash.

    Looks at `given` alone, or else where it lay at conversion, beside the artifact and here.

    Raises:
        ArtifactError: none of these is the very file.
    """
    source = artifact.manifest.source
    places = [given] if given else [
        Path(source.read_from), artifact.root.resolve().parent / source.name, Path(source.name)
    ]  # fmt: skip
    for path in places:
        if path.is_file() and path.stat().st_size == source.bytes and file_sha256(path) == source.sha256:
            return path
    where = str(given) if given else "where it was converted from, beside the artifact or here"
    raise ArtifactError(
        f"{artifact.root}: the gates compare with {source.name}, which is not {where}; "
        "pass the GGUF that was converted with --gguf"
    )


def prompt_ids(artifact: Artifact, texts: Sequence[str] = PROMPTS) -> list[list[int]]:
    """The texts as token ids of the artifact's vocabulary."""
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
        return [tokenizer.encode(text) for text in texts]


def residency_gate(
    artifact: Artifact,
    progress: Progress,
    coreml: CoreML | None = None,
    replay: Path | None = None,
    record: Path | None = None,
) -> ResidencyVerdict:
    """Run the residency gate and record its verdict in gates/residency.json; never raises on a red one.

    The plan is the one in `replay`, or Core ML's where `coreml` is given and the artifact is for the
    Neural Engine, or else predicted by the rules. Core ML's is also written to `record`, if given.

    Raises:
        RequestError: `replay` is no plan of this artifact, or there is nothing to record.
        ArtifactError: a shard is missing or damaged.
        StorageError: the verdict or the plan cannot be written.
    """
    manifest = artifact.manifest
    progress("checking the rules")
    prediction = predict(view_artifact(artifact), artifact.fingerprint, manifest.block)
    plan = prediction.plan
    if replay is not None:
        plan = replay_plan(replay, artifact)
    elif coreml is not None and manifest.target is Target.MAC:
        plan = measure_plan(artifact, coreml, progress)
        if record is not None:
            record_plan(plan, record)
    if record is not None and plan.source is not PlanSource.MEASURED:
        raise RequestError(
            f"there is no plan to record in {record}: only Core ML makes one, on a Mac with a Neural Engine, "
            "of an artifact for --target mac"
        )
    verdict = residency_verdict(plan, prediction.findings)
    artifact.record_verdict(ResidencyFile, verdict)
    return verdict


def golden_gate(
    artifact: Artifact, source: Path, backend: str, threads: int | None, progress: Progress
) -> GoldenVerdict:
    """Run the golden gate and record its verdict in gates/golden.json; never raises on a red one.

    Raises:
        GGUFError: the source and the artifact disagree on sizes.
        StorageError: the verdict cannot be written.
    """
    manifest = artifact.manifest

    def one(shard: Shard) -> ShardRunner:
        return open_shard(artifact, shard, backend, threads)

    with GGUFFile(source) as file:
        reference = Reference(file, manifest.context)
        _require_layers(manifest, reference, source)
        prompts = prompt_ids(artifact)
        ids = [token for prompt in prompts for token in prompt]
        with Embedding(artifact.tokens_path(), manifest.tokens, manifest.layer_shards) as own:
            shards = check_shards(manifest, reference, one, Feeds(manifest), own, ids=ids, progress=progress)
        verifier = open_verifier(artifact, backend, threads)
        try:
            stack = check_stack(verifier, reference, prompts, progress=progress)
        finally:
            verifier.close()
    verdict = golden_verdict(circumstances(artifact, backend, threads), shards, stack)
    artifact.record_verdict(GoldenFile, verdict)
    return verdict


def quality_gate(
    artifact: Artifact,
    source: Path,
    task: QualityTask,
    backend: str,
    threads: int | None,
    progress: Progress,
) -> QualityVerdict:
    """Score a text and record the verdict in gates/quality.json.

    Never raises on a red verdict. Passes are wide where the exactness gate proved that width does not matter.

    Raises:
        RequestError: the text is not UTF-8 or has less than two tokens.
        GGUFError: the source and the artifact disagree on sizes.
        StorageError: the text cannot be read, or the verdict cannot be written.
    """
    sample, limit = SampleText.read(task.text), task.most_tokens
    manifest, here = artifact.manifest, circumstances(artifact, backend, threads)
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
    bos = tokenizer.bos_id if tokenizer.adds_bos else None
    windows = cut_windows(sample.tokens(tokenizer, limit), bos, manifest.context, limit)
    if not windows:
        raise RequestError(f"{task.text}: has less than two tokens, so there is none to predict")
    exactness = artifact.read_verdicts(ExactnessFile).find(here)
    wide = exactness is not None and exactness.proves(Invariance.WIDTH)
    with GGUFFile(source) as file:
        reference = TextReference(file, manifest.context)
        _require_layers(manifest, reference, source)
        progress("loading the shards")
        verifier = open_verifier(artifact, backend, threads)
        try:
            scored = compare_on_text(verifier, reference, windows, wide=wide, progress=progress)
        finally:
            verifier.close()
    text = ScoredText(
        name=sample.name,
        sha256=sample.sha256,
        scored=len(scored.kl),
        window=max(len(window.ids) for window in windows),
    )
    verdict = quality_verdict(here, text, scored, task)
    artifact.record_verdict(QualityFile, verdict)
    return verdict


def recorded_exactness(
    artifact: Artifact,
    backend: str,
    threads: int | None,
    form: Literal["quick", "full"],
    progress: Progress,
) -> ExactnessVerdict:
    """Run the exactness gate and record its verdict in gates/exactness.json; never raises on a red one.

    Raises:
        StorageError: the verdict cannot be written.
    """
    verifier = open_verifier(artifact, backend, threads)
    try:
        verdict = exactness_gate(
            verifier,
            circumstances(artifact, backend, threads),
            form=form,
            prompts=prompt_ids(artifact),
            progress=progress,
        )
    finally:
        verifier.close()
    artifact.record_verdict(ExactnessFile, verdict)
    return verdict


def _require_layers(manifest: Manifest, reference: Reference, source: Path) -> None:
    if (layers := len(reference.facts.layers)) != manifest.hyperparameters.layers:
        raise GGUFError(f"{source}: has {layers} layers, the artifact has others")
