"""The library's functions: `anespec.inspect`, `convert_model`, `validate_model` and `load`."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anespec.model import Model, load_model
from anespec.models.conversion import default_output, open_plan
from anespec.system.progress import SILENT, ProgressCallbacks

if TYPE_CHECKING:
    from anespec.checking.validation import Validation
    from anespec.convert.options import ConvertOptions
    from anespec.convert.pipeline import Conversion
    from anespec.models.inspection import ArtifactInspection, GGUFInspection
    from anespec.runtime.options import LoadOptions
    from anespec.system.progress import Progress, StepReport
    from anespec.validate.options import ValidateOptions


# Choose the receiver of progress when a program loads a model: a terminal, a notebook, or a function.

ProgressCallback = Callable[[str, float | None], None]
"""Called with the current step, and the share done, from 0 to 1 (None if it is unknown)."""

SECONDS_BETWEEN_LINES = 0.2
BAR = 20


def watcher_of(progress: bool | ProgressCallback) -> ProgressCallbacks:
    """Return the callbacks for progress: those of the function; for True those of this terminal or notebook;
    for False none."""
    if callable(progress):
        return _calling(progress)
    if not progress:
        return SILENT
    from rich.console import Console

    from anespec.cli.console import watcher

    # Rich draws in a notebook only with ipywidgets; one line that is written over needs nothing.
    if Console().is_jupyter:
        return _calling(*_line())
    if sys.stderr is not None and sys.stderr.isatty():
        return replace(watcher(shown=True), note=SILENT.note)
    return SILENT


def _calling(report: ProgressCallback, end: Callable[[], None] = lambda: None) -> ProgressCallbacks:
    """Calls `report` after each step, and `end` after each piece of work."""

    @contextlib.contextmanager
    def steps(title: str) -> "Iterator[StepReport]":
        report(title, None)
        try:
            yield lambda note: report(f"{title}: {note}", None)
        finally:
            end()

    @contextlib.contextmanager
    def shares(title: str) -> "Iterator[Progress]":
        report(title, None)
        try:
            yield lambda note, share=None, /: report(f"{title}: {note}", share)
        finally:
            end()

    return ProgressCallbacks(steps=steps, shares=shares)


def _line() -> tuple[ProgressCallback, Callable[[], None]]:
    """Return the functions that rewrite one line on standard error, and that remove it."""
    last = longest = 0.0

    def report(what: str, share: float | None) -> None:
        nonlocal last, longest
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        done = "" if share is None else f"{'█' * round(BAR * share):░<{BAR}} {share:4.0%} "
        line = done + what
        sys.stderr.write(f"\r{line:<{int(longest)}}")
        sys.stderr.flush()
        longest = max(longest, len(line))

    def end() -> None:
        nonlocal last, longest
        sys.stderr.write(f"\r{'':<{int(longest)}}\r")
        sys.stderr.flush()
        last = longest = 0.0

    return report, end


PathLike = str | os.PathLike[str]


def inspect(path: PathLike, options: "ConvertOptions | None" = None) -> "GGUFInspection | ArtifactInspection":
    """Describe an artifact, or a GGUF and what `convert_model` would build of it with `options`.

    Raises:
        GGUFError: a file is malformed.
        ArtifactError: a folder is no artifact, or damaged.
        RequestError: the options do not fit the model.
        StorageError: it cannot be read.
    """
    from anespec.convert.options import ConvertOptions
    from anespec.gguf.container import GGUFFile
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact
    from anespec.models.inspection import ArtifactInspection, read_plan

    place = Path(path)
    if place.is_dir():
        return ArtifactInspection.of(Artifact(place, KnownHashes()))
    with GGUFFile(place) as file:
        return read_plan(file, options or ConvertOptions())[0]


def convert_model(
    gguf: PathLike,
    output: PathLike | None = None,
    options: "ConvertOptions | None" = None,
    *,
    replace: bool = False,
    jobs: int | None = None,
    watch: ProgressCallbacks = SILENT,
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


def validate_model(
    artifact: PathLike,
    options: "ValidateOptions | None" = None,
    *,
    watch: ProgressCallbacks = SILENT,
    **changes: Any,
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
    from anespec.checking.validation import run_validation
    from anespec.validate.options import ValidateOptions

    return run_validation(Path(artifact), (options or ValidateOptions()).with_changes(**changes), watch)


def load(
    artifact: PathLike,
    options: "LoadOptions | None" = None,
    *,
    watch: ProgressCallbacks | None = None,
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
    from anespec.runtime.options import LoadOptions

    chosen = (options or LoadOptions()).with_changes(**changes)
    return load_model(Path(artifact), chosen, watch or watcher_of(progress))
