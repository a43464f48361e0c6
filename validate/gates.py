"""Run the gates on an artifact on disk: find its source, measure, record the verdict."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Manifest, Shard
from anespec.manifests.store import Artifact, model_bytes, model_sha256
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, RunEnvironment
from anespec.runtime.backends import chosen_backend, circumstances, open_shard, open_verifier
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
from anespec.validate.golden.figures import SLACK, GoldenFile, GoldenVerdict, golden_verdict
from anespec.validate.golden.stack_passes import PromptRun, run_prompts
from anespec.validate.sample.prompts import prompt_ids

if TYPE_CHECKING:
    from anespec.validate.golden.reference import Reference

MAX_MATRICES = 8
"""An upper bound of a layer's weights in matrices: seven, and one for everything small."""


def find_source(artifact: Artifact, given: Path | None = None) -> Path:
    """Return the path of the GGUF that the artifact was made from; it is recognised by its hash.

    Only `given` is tried, or without it the path at conversion, the artifact's folder and the current folder.

    Raises:
        ArtifactError: none of these files is the GGUF.
        StorageError: `given` is not a file.
    """
    if given is not None and not given.is_file():
        raise StorageError(f"{given}: no such file; give the GGUF that was converted with --gguf PATH")
    source = artifact.manifest.source
    for path in [given] if given else source_places(artifact):
        if (
            path.is_file()
            and has_size(path, source.bytes)
            and _has_sizes(path, artifact.manifest)
            and model_sha256(path, artifact.hashes.file) == source.sha256
        ):
            return path
    where = (
        str(given) if given else "where it was at conversion, beside the artifact or in the current folder"
    )
    raise ArtifactError(
        f"{artifact.root}: the gates compare with {source.name}, which is not {where}; "
        "give the GGUF that was converted, with --gguf PATH"
    )


def has_size(path: Path, size: int) -> bool:
    """Return whether a GGUF, with all its parts, has `size` bytes."""
    try:
        return model_bytes(path) == size
    except (GGUFError, OSError):
        return False


def _has_sizes(path: Path, manifest: Manifest) -> bool:
    """Return whether the file has at most as many numbers as a model of the artifact's sizes can have.

    This is checked before the file is hashed: a forged manifest may claim the length of a huge sparse file,
    and hashing that would take hours.
    """
    sizes = manifest.hyperparameters
    # One tensor may hold the weights of queries, keys and values, or of gates and values.
    widest = max(sizes.d, 2 * sizes.ff, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim)
    most = widest * (2 * sizes.vocabulary + MAX_MATRICES * sizes.layers * widest)
    try:
        with GGUFFile(path) as file:
            return sum(tensor.elements for tensor in file) <= most
    except (GGUFError, StorageError):
        return False


def source_places(artifact: Artifact) -> tuple[Path, ...]:
    """Return where to look for an artifact's GGUF: its path at conversion, beside the artifact, and here."""
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
    """Run the golden gate and record its verdict in gates/golden.json; a failed verdict does not raise.

    Raises:
        GGUFError: the source and the artifact have different sizes.
        ArtifactError: the manifest and the shards disagree.
        StorageError: the verdict cannot be written.
    """
    # Imported here, since `generate` uses this module too and does not need `convert`.
    from anespec.validate.golden.gate import compare_computed
    from anespec.validate.golden.reference import Reference
    from anespec.validate.golden.steps import golden_weights
    from anespec.validate.golden.stored_weights import StoredWeights

    manifest = artifact.manifest
    arithmetic = chosen_backend(backend, manifest.target).arithmetic

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
                manifest, reference, one, PassInputs(manifest), own, prompt_runs,
                arithmetic=arithmetic, ids=ids, progress=step,
            )  # fmt: skip
        step("stored weights that no layer has read")
        stored = tuple(weights.figures())
    # The figures do not depend on which sequence's region rows are in, within the gate's limits.
    here = circumstances(artifact, backend, threads).with_all_sequences()
    slack = SLACK[arithmetic]
    verdict = golden_verdict(here, slack, stored, computed.shards, computed.stack, computed.hidden)
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
    """Run prompts through the whole stack, and close it before shards are opened one by one."""
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
    """Open a verifier, run `recorded_exactness` on it and return the verdict.

    Raises:
        AnespecError: the artifact does not run, here or in a new process.
        StorageError: the verdict cannot be written.
    """
    here = circumstances(artifact, backend, threads)
    # This runs before the artifact is opened here, so that memory holds it only once.
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
    """Run the exactness gate and record its verdict in gates/exactness.json; a failed verdict does not raise.

    `elsewhere` is the result of `run_elsewhere`; without it `repeat` is not measured. `unkept` is called with
    the error if the verdict cannot be written.

    Raises:
        StorageError: the verdict cannot be written, and there is no `unkept`.
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
    """Require that the source has as many layers as the artifact.

    Raises:
        GGUFError: the numbers of layers differ.
    """
    if (layers := len(reference.facts.layers)) != manifest.hyperparameters.layers:
        raise GGUFError(
            f"{source}: has {layers} layers, the artifact has {manifest.hyperparameters.layers}; convert the "
            "model again"
        )
