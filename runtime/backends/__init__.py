"""What executes shards. `open_verifier` is the one door: it turns an artifact into a Verifier."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from anespec.manifests.errors import ArtifactError, RequestError
from anespec.manifests.machine import processors
from anespec.manifests.packages import require_package
from anespec.manifests.schema import HIDDEN_IN, HIDDEN_OUT, Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import Circumstances, machine_name
from anespec.runtime.backends.declared import load_declared
from anespec.runtime.backends.feeds import Embedding
from anespec.runtime.backends.portable.program import Program, beside, chain
from anespec.runtime.backends.runner import ShardRunner
from anespec.runtime.backends.verifier import ArtifactVerifier, HeadStage, LayerStage

AUTO = "auto"
TORCH = "torch"
OPENVINO = "openvino"
BACKENDS = (TORCH, OPENVINO)

EXECUTOR_VERSION = 2
"""Part of every verdict's circumstances: raise it when a lowering, a fusion or a feed changes."""


def resolve_backend(name: str) -> str:
    """The backend that `name` means here; `auto` is the fast portable one.

    Raises:
        RequestError: there is no such backend.
    """
    if name == AUTO:
        return OPENVINO
    if name not in BACKENDS:
        raise RequestError(f"there is no backend {name!r}; choose one of {', '.join((AUTO, *BACKENDS))}")
    return name


def circumstances(artifact: Artifact, backend: str, threads: int | None = None) -> Circumstances:
    """Where a verdict on this artifact, run by this backend here, holds."""
    backend = resolve_backend(backend)
    return Circumstances(
        backend=backend,
        library_version=version(backend),
        executor=EXECUTOR_VERSION,
        machine=machine_name(),
        threads=threads or processors(),
        artifact=artifact.fingerprint,
    )


def _runner_factory(backend: str, threads: int | None) -> Callable[[Program], ShardRunner]:
    count, name = threads or processors(), resolve_backend(backend)
    require_package(name, f"the backend {name}")
    if name == TORCH:
        from anespec.runtime.backends.portable.torch_runner import TorchRunner

        return lambda program: TorchRunner(program, count)
    from anespec.runtime.backends.portable.openvino_runner import OpenVINORunner

    return lambda program: OpenVINORunner(program, count)


def open_shard(artifact: Artifact, shard: Shard, backend: str, threads: int | None = None) -> ShardRunner:
    """One shard by itself, as the golden gate looks at it.

    Raises:
        ArtifactError: the shard is missing, damaged or has an operation that the backend lacks, or is not
            what the manifest says.
    """
    return _runner_factory(backend, threads)(load_declared(artifact, shard))


def open_embedding(artifact: Artifact) -> Embedding:
    """What looks up tokens for the artifact's shards.

    Raises:
        ArtifactError: tokens.gguf is missing or damaged, or its tables are not as the shards take them.
    """
    manifest = artifact.manifest
    embedding = Embedding(artifact.tokens_path(), manifest.tokens, manifest.layer_shards)
    if (wanted := manifest.hyperparameters.vocabulary) != embedding.vocabulary:
        embedding.close()
        raise ArtifactError(
            f"{artifact.root}: the embedding table has {embedding.vocabulary} rows, but the manifest says a "
            f"vocabulary of {wanted}; convert the model again"
        )
    return embedding


def open_verifier(path: Path | Artifact, backend: str = AUTO, threads: int | None = None) -> ArtifactVerifier:
    """Load an artifact's shards, all layers chained into one program and all heads into another.

    Raises:
        ArtifactError: the artifact or a shard is missing, damaged, not what the manifest says or has an
            unknown operation.
        RequestError: there is no such backend.
    """
    artifact = path if isinstance(path, Artifact) else Artifact(path)
    manifest = artifact.manifest
    make = _runner_factory(backend, threads)
    body = chain([load_declared(artifact, s) for s in manifest.layer_shards], HIDDEN_IN, HIDDEN_OUT)
    head = beside([load_declared(artifact, s) for s in manifest.head_shards])
    embedding = open_embedding(artifact)
    listed = {state.name: state for shard in manifest.layer_shards for state in shard.states}
    states = tuple(listed[name] for name in body.states)
    return ArtifactVerifier(
        manifest,
        embedding,
        [LayerStage(make(body), body.outputs[0], states)],
        [HeadStage(make(head), head.outputs)],
    )
