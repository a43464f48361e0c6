"""The gates over an artifact on disk: find its source, run, record."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Manifest, Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, RunEnvironment
from anespec.runtime.backends import circumstances, open_shard, open_verifier
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.runner import ShardRunner
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.passes import Verifier
from anespec.system.errors import ArtifactError, GGUFError, StorageError
from anespec.system.machine import processors
from anespec.system.progress import Progress, StepReport, in_weighted_steps
from anespec.validate.exactness.effort import Form
from anespec.validate.exactness.gate import exactness_gate
from anespec.validate.exactness.repeat_checks import Elsewhere
from anespec.validate.exactness.repeat_process import run_elsewhere
from anespec.validate.golden.figures import GoldenFile, GoldenVerdict, golden_verdict
from anespec.validate.golden.stack_passes import PromptRun, run_prompts
from anespec.validate.sample.prompts import prompt_ids

if TYPE_CHECKING:
    from anespec.validate.golden.reference import Reference

MOST_MATRICES = 8
"""Of a layer: seven, and room for what is small."""


def find_source(artifact: Artifact, given: Path | None = None) -> Path:
    """The GGUF that the artifact was made from, recognised by its hash.

    Looks at `given` alone, or else where it lay at conversion, beside the artifact and here.

    Raises:
        ArtifactError: none of these is the very file.
        StorageError: `given` is no file.
    """
    if given is not None and not given.is_file():
        raise StorageError(f"{given}: no such file; --gguf takes the GGUF that was converted")
    source = artifact.manifest.source
    for path in [given] if given else source_places(artifact):
        if (
            path.is_file()
            and path.stat().st_size == source.bytes
            and _has_sizes(path, artifact.manifest)
            and artifact.hashes.file(path) == source.sha256
        ):
            return path
    where = str(given) if given else "where it was converted from, beside the artifact or here"
    raise ArtifactError(
        f"{artifact.root}: the gates compare with {source.name}, which is not {where}; "
        "give the GGUF that was converted, with --gguf PATH"
    )


def _has_sizes(path: Path, manifest: Manifest) -> bool:
    """Whether a file's tables fill it with tensors that a model of the artifact's sizes may have.

    To be asked before the file is hashed, which takes hours for a sparse one that is as long as a forged
    manifest says.
    """
    sizes = manifest.hyperparameters
    # Weights of queries, keys and values, or of gates and values, may stand in one tensor.
    widest = max(sizes.d, 2 * sizes.ff, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim)
    most = widest * (2 * sizes.vocabulary + MOST_MATRICES * sizes.layers * widest)
    try:
        with GGUFFile(path) as file:
            return sum(tensor.elements for tensor in file) <= most
    except (GGUFError, StorageError):
        return False


def source_places(artifact: Artifact) -> tuple[Path, ...]:
    """Where an artifact's GGUF is looked for: where it lay at conversion, beside the artifact and here."""
    source = artifact.manifest.source
    return Path(source.read_from), artifact.root.resolve().parent / source.name, Path(source.name)


def golden_gate(
    artifact: Artifact,
    source: Path,
    backend: str,
    threads: int | None,
    progress: Progress,
    workers: WorkerLimits | None = None,
) -> GoldenVerdict:
    """Run the golden gate and record its verdict in gates/golden.json; a failed one does not raise.

    Raises:
        GGUFError: the source and the artifact disagree on sizes.
        ArtifactError: the manifest and the shards disagree.
        StorageError: the verdict cannot be written.
    """
    # Imported here, since generating uses this module too, and does not need `convert`.
    from anespec.validate.golden.gate import compare_computed
    from anespec.validate.golden.reference import Reference
    from anespec.validate.golden.steps import golden_weights
    from anespec.validate.golden.stored_weights import StoredWeights

    manifest = artifact.manifest

    def one(shard: Shard) -> ShardRunner:
        return open_shard(artifact, shard, backend, threads, workers)

    with GGUFFile(source) as file:
        weights = StoredWeights(artifact, file, threads or processors())
        reference = Reference(file, manifest.context, matrices=weights)
        require_layers(manifest, reference, source)
        weights.require_shapes()
        prompts = prompt_ids(artifact)
        ids = [token for prompt in prompts for token in prompt]
        step = in_weighted_steps(progress, golden_weights(manifest, prompts))
        prompt_runs = _prompt_runs(artifact, prompts, backend, threads, step, workers)
        with open_embedding(artifact) as own:
            computed = compare_computed(
                manifest, reference, one, PassInputs(manifest), own, prompt_runs, ids=ids, progress=step
            )
        step("stored weights: those that no layer has read")
        stored = tuple(weights.figures())
    # Within its limits nothing depends on where rows stand.
    here = circumstances(artifact, backend, threads).with_all_sequences()
    verdict = golden_verdict(here, stored, computed.shards, computed.stack)
    artifact.record_verdict(GoldenFile, verdict)
    return verdict


def _prompt_runs(
    artifact: Artifact,
    prompts: Sequence[Sequence[int]],
    backend: str,
    threads: int | None,
    progress: StepReport,
    workers: WorkerLimits | None,
) -> tuple[PromptRun, ...]:
    """What the whole stack makes of prompts; nothing of it stays in memory beside the shards that follow."""
    progress("opening the whole stack")
    with closing(open_verifier(artifact, backend, threads, workers)) as verifier:
        return run_prompts(verifier, prompts, progress=progress)


def exactness_of(
    artifact: Artifact,
    backend: str,
    threads: int | None,
    form: Form,
    progress: Progress,
    workers: WorkerLimits | None = None,
) -> ExactnessVerdict:
    """`recorded_exactness` of a verifier that is opened for it.

    Raises:
        AnespecError: the artifact does not run, here or in a new process.
        StorageError: the verdict cannot be written.
    """
    here = circumstances(artifact, backend, threads)
    # Before it is opened here, so that it stands in memory once.
    progress("the same pass in a new process")
    elsewhere = run_elsewhere(artifact, here, workers)
    progress("loading the shards")
    with closing(open_verifier(artifact, backend, threads, workers)) as verifier:
        return recorded_exactness(artifact, verifier, here, form, progress, elsewhere)


def recorded_exactness(
    artifact: Artifact,
    verifier: Verifier,
    here: RunEnvironment,
    form: Form,
    progress: Progress,
    elsewhere: Elsewhere | None,
    unkept: Callable[[StorageError], None] | None = None,
) -> ExactnessVerdict:
    """Run the exactness gate and record its verdict in gates/exactness.json; a failed one does not raise.

    `elsewhere` is what `run_elsewhere` found; without it `repeat` is not measured. `unkept` is told where the
    verdict cannot be written.

    Raises:
        StorageError: it cannot be written, and there is no `unkept`.
    """
    verdict = exactness_gate(
        verifier, here, form=form, prompts=prompt_ids(artifact), elsewhere=elsewhere, progress=progress
    )
    try:
        artifact.record_verdict(ExactnessFile, verdict)
    except StorageError as error:
        if unkept is None:
            raise
        unkept(error)
    return verdict


def require_layers(manifest: Manifest, reference: "Reference", source: Path) -> None:
    """Do nothing where the source has as many layers as the artifact.

    Raises:
        GGUFError: it has not.
    """
    if (layers := len(reference.facts.layers)) != manifest.hyperparameters.layers:
        raise GGUFError(
            f"{source}: has {layers} layers, the artifact has {manifest.hyperparameters.layers}; convert the "
            "model again"
        )
