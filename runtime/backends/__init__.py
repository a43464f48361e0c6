"""What executes shards. `open_verifier` is the one door: it turns an artifact into a Verifier."""

import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from anespec.manifests.errors import ArtifactError, RequestError
from anespec.manifests.schema import HIDDEN_IN, HIDDEN_OUT, Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import Circumstances, machine_name
from anespec.runtime.backends.feeds import Embedding, fed_shapes
from anespec.runtime.backends.portable.program import Program, beside, chain, load_program
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


def default_threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def circumstances(artifact: Artifact, backend: str, threads: int | None = None) -> Circumstances:
    """Where a verdict on this artifact, run by this backend here, holds."""
    backend = resolve_backend(backend)
    return Circumstances(
        backend=backend,
        library_version=version(backend),
        executor=EXECUTOR_VERSION,
        machine=machine_name(),
        threads=threads or default_threads(),
        artifact=artifact.fingerprint,
    )


def _runner_factory(backend: str, threads: int | None) -> Callable[[Program], ShardRunner]:
    count = threads or default_threads()
    if resolve_backend(backend) == TORCH:
        from anespec.runtime.backends.portable.torch_runner import TorchRunner

        return lambda program: TorchRunner(program, count)
    from anespec.runtime.backends.portable.openvino_runner import OpenVINORunner

    return lambda program: OpenVINORunner(program, count)


def open_shard(artifact: Artifact, shard: Shard, backend: str, threads: int | None = None) -> ShardRunner:
    """One shard by itself, as the golden gate looks at it.

    Raises:
        ArtifactError: the shard is missing, damaged or has an operation that the backend lacks, or takes
            other inputs than the manifest says.
    """
    program, fed = load_program(artifact.shard_path(shard)), fed_shapes(artifact.manifest)
    if any(fed.get(name) != shape for name, shape in program.inputs.items()):
        raise _other_inputs(artifact)
    return _runner_factory(backend, threads)(program)


def _other_inputs(artifact: Artifact) -> ArtifactError:
    return ArtifactError(
        f"{artifact.root}: the shards have other inputs or states than the manifest says; "
        "convert the model again"
    )


def open_verifier(path: Path | Artifact, backend: str = AUTO, threads: int | None = None) -> ArtifactVerifier:
    """Load an artifact's shards, all layers chained into one program and all heads into another.

    Raises:
        ArtifactError: the artifact or a shard is missing, damaged or has an unknown operation.
        RequestError: there is no such backend.
    """
    artifact = path if isinstance(path, Artifact) else Artifact(path)
    manifest = artifact.manifest
    make = _runner_factory(backend, threads)
    body = chain([load_program(artifact.shard_path(s)) for s in manifest.layer_shards], HIDDEN_IN, HIDDEN_OUT)
    head = beside([load_program(artifact.shard_path(s)) for s in manifest.head_shards])
    states = tuple(state for shard in manifest.layer_shards for state in shard.states)
    if body.inputs != fed_shapes(manifest) or body.states != {state.name: state.shape for state in states}:
        raise _other_inputs(artifact)
    return ArtifactVerifier(
        manifest,
        Embedding(artifact.tokens_path(), manifest.tokens, manifest.layer_shards),
        [LayerStage(make(body), body.outputs[0], states)],
        [HeadStage(make(head), head.outputs)],
    )
