"""Choose a backend by name, and open an artifact's Verifier with it (`open_verifier`).

Importing this module imports no backend: each is imported when it is first looked up in `BACKENDS`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from anespec.system.errors import MissingPackageError, RequestError
from anespec.system.machine import machine_name, processors
from anespec.system.progress import idle

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
MLX = "mlx"
TORCH_FLUSH = "torch-flush"
COREML = "coreml"
COREML_CPU = "coreml-cpu"
WORKER = "worker"

USUAL_MEMORY_FACTOR = 1.3
"""The budget of the design for a backend that was not measured."""

EXECUTOR_VERSION = 6
"""The version of the executors, which every verdict records.

Raise it when a lowering, a fusion or an input changes: verdicts of another version are then ignored.
"""


def _torch() -> "MakeRunner":
    from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner

    return TorchRunner


def _torch_flush() -> "MakeRunner":
    from anespec.runtime.backends.portable.torch_cpu.runner import FlushingRunner

    return FlushingRunner


def _openvino() -> "MakeRunner":
    from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner

    return OpenVINORunner


def _mlx() -> "MakeRunner":
    from anespec.runtime.backends.portable.mlx_gpu.runner import MLXRunner

    return MLXRunner


def _portable(
    name: str,
    package: str,
    runner: "Callable[[], MakeRunner]",
    *,
    holds_caches: bool,
    uses_threads: bool = True,
    int8_activations: bool = False,
) -> "Backend":
    from anespec.runtime.backends.backend import Arithmetic
    from anespec.runtime.backends.portable.backend import PortableBackend

    arithmetic = Arithmetic.INT8_ACTIVATIONS if int8_activations else Arithmetic.FLOAT
    return PortableBackend(name, package, runner, holds_caches, uses_threads, arithmetic)


def _core_ml(name: str, on_the_engine: bool) -> "Backend":
    from anespec.runtime.backends.coreml.backend import CoreMLBackend
    from anespec.runtime.backends.coreml.library import ComputeUnits

    return CoreMLBackend(name, ComputeUnits.CPU_AND_NE if on_the_engine else ComputeUnits.CPU_ONLY)


def _worker(name: str) -> "Backend":
    from anespec.runtime.backends.worker.backend import WorkerBackend

    return WorkerBackend(name)


def _on_the_engine(target: "Target | None") -> bool:
    """Return whether an artifact runs on a Neural Engine: if there is one, and it was not built for CPUs."""
    from anespec.manifests.schema import Target

    if target is Target.CPU:
        return False
    from anespec.runtime.backends.coreml.library import has_neural_engine

    return has_neural_engine()


def _on_a_gpu(_: "Target | None") -> bool:
    """Return whether MLX computes on the GPU of a Mac."""
    if sys.platform != "darwin" or BACKENDS[MLX].unavailable() is not None:
        return False
    from anespec.runtime.backends.portable.mlx_gpu.library import on_gpu

    return on_gpu()


def _anywhere(_: "Target | None") -> bool:
    return True


def _if_named(_: "Target | None") -> bool:
    return False


@dataclass(frozen=True)
class BackendEntry:
    """What a backend is made by, what is said of it, and what is known of its memory.

    `suits` returns whether `auto` may take it here, for an artifact that was built for a target. A model in
    use takes `memory_factor` times the bytes of its weights and states. A weight with a palette that is
    looked up when a shard is loaded takes `palette_bytes` for each number.
    """

    make: "Callable[[], Backend]"
    described: str
    suits: "Callable[[Target | None], bool]" = _if_named
    memory_factor: float = USUAL_MEMORY_FACTOR
    palette_bytes: int | None = None


ENTRIES: Mapping[str, BackendEntry] = MappingProxyType(
    {
        WORKER: BackendEntry(
            partial(_worker, WORKER),
            "Core ML in native processes (anespec worker build)",
            suits=_on_the_engine,
        ),
        COREML: BackendEntry(
            partial(_core_ml, COREML, on_the_engine=True),
            "Core ML with the Neural Engine",
            suits=_on_the_engine,
        ),
        MLX: BackendEntry(
            partial(_portable, MLX, "mlx", _mlx, holds_caches=True, uses_threads=False),
            "for the GPU of a Mac",
            suits=_on_a_gpu,
            palette_bytes=2,
        ),
        # States are f32, and there is a second copy of the weights after a wide pass: 904 MB of weights with
        # 268 MB of states took 1.01 GB when they were loaded, 1.92 GB after a prompt of 30 tokens, and 2.20
        # GB with all contexts full.
        OPENVINO: BackendEntry(
            partial(_portable, OPENVINO, "openvino", _openvino, holds_caches=True, int8_activations=True),
            "the fastest on a CPU",
            suits=_anywhere,
            memory_factor=2.0,
            palette_bytes=4,
        ),
        COREML_CPU: BackendEntry(
            partial(_core_ml, COREML_CPU, on_the_engine=False), "Core ML without the Neural Engine"
        ),
        TORCH: BackendEntry(
            partial(_portable, TORCH, "torch", _torch, holds_caches=False),
            "which rounds after every operation",
        ),
        TORCH_FLUSH: BackendEntry(
            partial(_portable, TORCH_FLUSH, "torch", _torch_flush, holds_caches=False),
            "which also treats subnormal fp16 numbers as zero, as a Neural Engine may",
        ),
    }
)
"""Everything that is known of each backend, in the order in which `auto` tries them and `--backend` lists
them."""


class _Backends(Mapping[str, "Backend"]):
    """The backends by name. Each is imported and made when it is first looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Backend] = {}

    def __getitem__(self, name: str) -> "Backend":
        if name not in self._made:
            self._made[name] = ENTRIES[name].make()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


BACKENDS: "Mapping[str, Backend]" = _Backends()


def resolve_backend(name: str, target: "Target | None" = None) -> str:
    """Return the name of the backend to use on this machine, for an artifact that was built for `target`.

    `auto` stands for the first of ENTRIES that suits and can run here.

    Raises:
        RequestError: no backend has this name.
        MissingPackageError: the backend cannot run on this machine.
    """
    if name == AUTO:
        suiting = (each for each, entry in ENTRIES.items() if entry.suits(target))
        name = next((each for each in suiting if BACKENDS[each].unavailable() is None), OPENVINO)
    if name not in BACKENDS:
        raise RequestError(f"there is no backend {name!r}; choose one of {', '.join((AUTO, *BACKENDS))}")
    if (reason := BACKENDS[name].unavailable()) is not None:
        raise MissingPackageError(f"the backend {name} cannot run here; it needs {reason}")
    return name


def device_of(backend: str) -> str:
    """Return the device that a backend runs on: `engine`, `gpu` or `cpu`; the work of two may overlap."""
    if backend in (COREML, WORKER):
        return "engine"
    return "gpu" if backend == MLX and sys.platform == "darwin" else "cpu"


def circumstances(artifact: "Artifact", backend: str, threads: int | None = None) -> "RunEnvironment":
    """Return the environment in which this backend runs this artifact here, as verdicts record it.

    Raises:
        RequestError: no backend has this name.
        MissingPackageError: the backend cannot run on this machine.
    """
    from anespec.manifests.verdicts import RunEnvironment
    from anespec.runtime.kv.folding import FOLDED_BY

    backend = resolve_backend(backend, artifact.manifest.target)
    return RunEnvironment(
        backend=backend,
        library_version=BACKENDS[backend].library_version(),
        executor=EXECUTOR_VERSION,
        machine=machine_name(),
        threads=(threads or processors()) if BACKENDS[backend].uses_threads else 1,
        artifact=artifact.fingerprint,
        sequences=artifact.sequences if BACKENDS[backend].takes_spans else None,
        folded_by=None if artifact.manifest.chunk is None else FOLDED_BY,
    )


def chosen_backend(
    name: str, target: "Target | None" = None, workers: "WorkerLimits | None" = None
) -> "Backend":
    """Return the backend that `resolve_backend` names; raise its errors.

    `workers` limits the worker processes of the backend `worker`, None means its defaults; other backends
    ignore it.
    """
    chosen = BACKENDS[resolve_backend(name, target)]
    if workers is None or chosen.name != WORKER:
        return chosen
    from anespec.runtime.backends.worker.backend import WorkerBackend

    return replace(chosen, limits=workers) if isinstance(chosen, WorkerBackend) else chosen


def recorded_starts(artifact: "Artifact", backend: str) -> "Starts | None":
    """Return how long earlier starts of an artifact took on a backend that can run here; None if unknown."""
    return BACKENDS[backend].starts(artifact)


def open_shard(
    artifact: "Artifact",
    shard: "Shard",
    backend: str,
    threads: int | None = None,
    workers: "WorkerLimits | None" = None,
) -> "ShardRunner":
    """Load one shard alone, for the golden gate; `workers` as in `chosen_backend`.

    Raises:
        ArtifactError: the shard is missing or damaged, has an operation that the backend lacks, or differs
            from the manifest.
        RequestError: no backend has this name.
        MissingPackageError: the backend cannot run on this machine.
    """
    chosen = chosen_backend(backend, artifact.manifest.target, workers)
    return chosen.open_shard(artifact, shard, threads or processors())


def open_verifier(
    path: "Path | Artifact",
    backend: str = AUTO,
    threads: int | None = None,
    workers: "WorkerLimits | None" = None,
    compiling: Callable[[], None] = idle,
) -> "Verifier":
    """Load all shards of an artifact, given by its path or opened.

    `workers` is as in `chosen_backend`, `compiling` as in `Backend.open`.

    Raises:
        ArtifactError: the artifact or a shard is missing or damaged, has an operation that the backend lacks,
            or differs from the manifest.
        RequestError: no backend has this name.
        MissingPackageError: the backend cannot run on this machine.
    """
    from anespec.manifests.store import Artifact

    artifact = path if isinstance(path, Artifact) else Artifact(path)
    chosen = chosen_backend(backend, artifact.manifest.target, workers)
    return chosen.open(artifact, threads or processors(), compiling)
