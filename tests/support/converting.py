"""Converts a GGUF in one call, for tests."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from once import Once

from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import Conversion, ShardProgress, convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.convert.worker_process import WorkerProcess
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target

# coremltools collects garbage several times in each conversion, which would walk all that is imported.
gc.freeze()


def build_once(once: Once, gguf: Path, output: Path, **options: Any) -> Path:
    """`build`, for a converter that no test has changed: a copy of the one artifact of these options."""
    key = (build.__name__, gguf, sorted(options.items()))
    return once(output, lambda path: build(gguf, path, **options), *key)


def build(
    gguf: Path,
    output: Path,
    *,
    replace: bool = False,
    jobs: int | None = None,
    early: WorkerProcess | None = None,
    on_progress: Callable[[ShardProgress], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
    **options: Any,
) -> Conversion:
    """Convert `gguf` to `output`; `options` are those of ConvertOptions.

    Where no target is said it is a Mac's, on every machine.
    """
    if "tuned" not in options:
        options = {"target": Target.MAC} | options
    with GGUFFile(gguf) as file:
        plan = ConversionPlan(SourceModel(file), ConvertOptions(**options))
        return convert(
            plan, output, replace=replace, jobs=jobs, early=early, on_progress=on_progress, on_bytes=on_bytes
        )
