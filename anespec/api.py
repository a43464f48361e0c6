"""The library's functions: `anespec.inspect`, `convert`, `validate` and `load`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anespec.conversion import default_output, open_plan
from anespec.model import Model, load_model
from anespec.watching import SILENT, Watcher

if TYPE_CHECKING:
    from anespec.convert.options import ConvertOptions
    from anespec.convert.pipeline import Conversion
    from anespec.inspection import ArtifactInspection, GGUFInspection
    from anespec.load_progress import ProgressCallback
    from anespec.runtime.options import LoadOptions
    from anespec.validate.options import ValidateOptions
    from anespec.validation import Validation

PathLike = str | os.PathLike[str]


def inspect(path: PathLike, options: "ConvertOptions | None" = None) -> "GGUFInspection | ArtifactInspection":
    """Describe a GGUF and what `convert` would build of it with `options`, or an artifact's folder and its
    contents.

    Raises:
        GGUFError: a file is malformed.
        ArtifactError: a folder is no artifact, or damaged.
        RequestError: the options do not fit the model.
        StorageError: it cannot be read.
    """
    from anespec.convert.options import ConvertOptions
    from anespec.inspection import ArtifactInspection, read_plan
    from anespec.manifests.gguf_file import GGUFFile
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact

    place = Path(path)
    if place.is_dir():
        return ArtifactInspection.of(Artifact(place, KnownHashes()))
    with GGUFFile(place) as file:
        return read_plan(file, options or ConvertOptions())[0]


def convert(
    gguf: PathLike,
    output: PathLike | None = None,
    options: "ConvertOptions | None" = None,
    *,
    replace: bool = False,
    jobs: int | None = None,
    watch: Watcher = SILENT,
) -> "Conversion":
    """Convert a GGUF into an artifact's folder: `output`, or NAME.anespec in the current folder.

    An interrupted run continues when it is requested again. `replace` allows replacing an existing, different
    artifact; `jobs` is the number of shards built at once (None: chosen by the expected gain). `watch`
    receives progress.

    Raises:
        GGUFError: the file is malformed.
        UnsupportedModelError: the model is none that is converted.
        RequestError: the options do not fit the model.
        UsageError: something else stands there, and `replace` was not asked for.
        StorageError: the disk is full, or does not let itself be written.
    """
    from anespec.convert.options import ConvertOptions
    from anespec.convert.pipeline import convert as run
    from anespec.convert.worker_process import early_process

    source = Path(gguf)
    target = Path(output) if output is not None else default_output(source)
    with (
        early_process(source, jobs) as early,
        open_plan(source, options or ConvertOptions()) as plan,
        watch.shares(f"converting {source.name}") as report,
    ):
        return run(
            plan,
            target,
            replace=replace,
            jobs=jobs,
            early=early,
            on_progress=lambda shard: report(shard.name, shard.done_bytes / max(1, shard.total_bytes)),
        )


def validate(
    artifact: PathLike, options: "ValidateOptions | None" = None, *, watch: Watcher = SILENT, **changes: Any
) -> "Validation":
    """Run an artifact's gates, and write its report page. `require` of the result raises if a gate fails the
    run.

    `changes` are fields of ValidateOptions, which take precedence over `options`. A verdict that was recorded
    and still holds is not measured again. `watch` receives progress.

    Raises:
        ArtifactError: the folder is no artifact.
        RequestError: an option is out of range, or there is no such backend.
        UsageError: options that say nothing together.
        StorageError: the text to be scored cannot be read.
    """
    from anespec.validate.options import ValidateOptions
    from anespec.validation import run_validation

    return run_validation(Path(artifact), (options or ValidateOptions()).with_changes(**changes), watch)


def load(
    artifact: PathLike,
    options: "LoadOptions | None" = None,
    *,
    watch: Watcher | None = None,
    progress: "bool | ProgressCallback" = True,
    **changes: Any,
) -> Model:
    """Open an artifact, or a GGUF, which is converted first, to generate from. Use it in a `with` block, or
    close it.

    `changes` are fields of LoadOptions, which take precedence over `options`. Gates without a verdict on this
    machine run in the background, or as `gates` says. A terminal and a notebook show the progress of loading,
    unless `progress` is False. A function is called instead with the current step and the share done, from 0
    to 1 (None if it is unknown). A `watch` receives progress and notes instead of both.

    Raises:
        ArtifactError: the folder is missing, damaged or of another version.
        RequestError: an option is out of range, or there is no such backend.
        GoldenGateError: it computes something else than its GGUF, as far as that is known.
    """
    from anespec.load_progress import watcher_of
    from anespec.runtime.options import LoadOptions

    chosen = (options or LoadOptions()).with_changes(**changes)
    return load_model(Path(artifact), chosen, watch or watcher_of(progress))
