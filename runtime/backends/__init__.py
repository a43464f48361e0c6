"""The backends that execute shards. `open_verifier` turns an artifact into a Verifier.

Importing this loads no backend: each is imported when it is first looked up in `BACKENDS`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.system.errors import MissingPackageError, RequestError
from anespec.system.machine import machine_name, processors

if TYPE_CHECKING:
    from anespec.manifests.schema import Shard, Target
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import RunEnvironment
    from anespec.runtime.backends.backend import Backend
    from anespec.runtime.backends.coreml.start_times import Starts
    from anespec.runtime.backends.portable.backend import MakeRunner
    from anespec.runtime.backends.runner import ShardRunner
    from anespec.runtime.backends.worker.sharing import WorkerLimits
    from anespec.runtime.passes import Verifier

AUTO = "auto"
TORCH = "torch"
OPENVINO = "openvino"
TORCH_FLUSH = "torch-flush"
COREML = "coreml"
COREML_CPU = "coreml-cpu"
WORKER = "worker"

EXECUTOR_VERSION = 5
"""Part of every verdict's circumstances: raise it when a lowering, a fusion or an input changes."""


def _torch() -> "MakeRunner":
    from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner

    return TorchRunner


def _torch_flush() -> "MakeRunner":
    from anespec.runtime.backends.portable.torch_cpu.runner import FlushingRunner

    return FlushingRunner


def _openvino() -> "MakeRunner":
    from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner

    return OpenVINORunner


def _portable(name: str, package: str, runner: "Callable[[], MakeRunner]", holds_caches: bool) -> "Backend":
    from anespec.runtime.backends.portable.backend import PortableBackend

    return PortableBackend(name, package, runner, holds_caches=holds_caches)


def _core_ml(name: str, on_the_engine: bool) -> "Backend":
    from anespec.runtime.backends.coreml.backend import CoreMLBackend
    from anespec.runtime.backends.coreml.library import ComputeUnits

    return CoreMLBackend(name, ComputeUnits.CPU_AND_NE if on_the_engine else ComputeUnits.CPU_ONLY)


def _worker(name: str) -> "Backend":
    from anespec.runtime.backends.worker.backend import WorkerBackend

    return WorkerBackend(name)


class _Backends(Mapping[str, "Backend"]):
    """The backends by name; each is made when it is first looked up."""

    def __init__(self, makers: "Mapping[str, Callable[[], Backend]]") -> None:
        self._makers = makers
        self._made: dict[str, Backend] = {}

    def __getitem__(self, name: str) -> "Backend":
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


BACKENDS: "Mapping[str, Backend]" = _Backends(
    {
        TORCH: partial(_portable, TORCH, "torch", _torch, holds_caches=False),
        OPENVINO: partial(_portable, OPENVINO, "openvino", _openvino, holds_caches=True),
        TORCH_FLUSH: partial(_portable, TORCH_FLUSH, "torch", _torch_flush, holds_caches=False),
        COREML: partial(_core_ml, COREML, on_the_engine=True),
        COREML_CPU: partial(_core_ml, COREML_CPU, on_the_engine=False),
        WORKER: partial(_worker, WORKER),
    }
)
"""By name, in the order that `--backend` lists them."""


def resolve_backend(name: str, target: "Target | None" = None) -> str:
    """The backend that `name` means here, for an artifact that was built for `target`.

    `auto` is Core ML on a Mac with a Neural Engine, unless the artifact is for processors: in the worker, if
    that was built. Everywhere else it is the fast portable one.

    Raises:
        RequestError: there is no such backend.
        MissingPackageError: it cannot run here.
    """
    from anespec.manifests.schema import Target
    from anespec.runtime.backends.coreml.library import has_neural_engine

    if name == AUTO:
        on_the_engine = (WORKER, COREML) if target is not Target.CPU and has_neural_engine() else ()
        name = next((name for name in on_the_engine if BACKENDS[name].unavailable() is None), OPENVINO)
    if name not in BACKENDS:
        raise RequestError(f"there is no backend {name!r}; choose one of {', '.join((AUTO, *BACKENDS))}")
    if (reason := BACKENDS[name].unavailable()) is not None:
        raise MissingPackageError(f"the backend {name} needs what is not here: {reason}")
    return name


def circumstances(artifact: "Artifact", backend: str, threads: int | None = None) -> "RunEnvironment":
    """Return the circumstances of verdicts on this artifact, run by this backend on this machine.

    Raises:
        RequestError: there is no such backend.
        MissingPackageError: it cannot run here.
    """
    from anespec.manifests.verdicts import RunEnvironment

    backend = resolve_backend(backend, artifact.manifest.target)
    return RunEnvironment(
        backend=backend,
        library_version=BACKENDS[backend].library_version(),
        executor=EXECUTOR_VERSION,
        machine=machine_name(),
        threads=(threads or processors()) if BACKENDS[backend].uses_threads else 1,
        artifact=artifact.fingerprint,
        sequences=artifact.sequences if BACKENDS[backend].takes_spans else None,
    )


def chosen_backend(
    name: str, target: "Target | None" = None, workers: "WorkerLimits | None" = None
) -> "Backend":
    """The backend that `name` means here (see resolve_backend, and its errors).

    `workers` are the limits of one that has some; None are the default ones.
    """
    from anespec.runtime.backends.worker.backend import WorkerBackend

    chosen = BACKENDS[resolve_backend(name, target)]
    return replace(chosen, limits=workers) if isinstance(chosen, WorkerBackend) and workers else chosen


def recorded_starts(artifact: "Artifact", backend: str) -> "Starts | None":
    """What starting an artifact took before on a backend that can run here; None where that is not known."""
    return BACKENDS[backend].starts(artifact)


def open_shard(
    artifact: "Artifact",
    shard: "Shard",
    backend: str,
    threads: int | None = None,
    workers: "WorkerLimits | None" = None,
) -> "ShardRunner":
    """One shard by itself, as the golden gate looks at it; `workers` as in `open_verifier`.

    Raises:
        ArtifactError: the shard is missing, damaged or has an operation that the backend lacks, or is not
            what the manifest says.
        RequestError: there is no such backend.
        MissingPackageError: it cannot run here.
    """
    chosen = chosen_backend(backend, artifact.manifest.target, workers)
    return chosen.open_shard(artifact, shard, threads or processors())


def open_verifier(
    path: "Path | Artifact",
    backend: str = AUTO,
    threads: int | None = None,
    workers: "WorkerLimits | None" = None,
) -> "Verifier":
    """Load an artifact's shards; `workers` are the limits of the backend that has some.

    Raises:
        ArtifactError: the artifact or a shard is missing, damaged, not what the manifest says or has an
            unknown operation.
        RequestError: there is no such backend.
        MissingPackageError: it cannot run here.
    """
    from anespec.manifests.store import Artifact

    artifact = path if isinstance(path, Artifact) else Artifact(path)
    chosen = chosen_backend(backend, artifact.manifest.target, workers)
    return chosen.open(artifact, threads or processors())
