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


# Where the progress of loading is shown: in a terminal, in a notebook, or by a function of the caller.

ProgressCallback = Callable[[str, float | None], None]
"""A function that receives the current step, and the share done, from 0 to 1 (None if it is unknown)."""

SECONDS_BETWEEN_LINES = 0.2
BAR = 20


def watcher_of(progress: bool | ProgressCallback) -> ProgressCallbacks:
    """Return the callbacks that show progress.

    A function is called with each step; True shows progress in this terminal or notebook; False shows none.
    """
    if callable(progress):
        return _calling(progress)
    if not progress:
        return SILENT
    from rich.console import Console

    from anespec.cli.console import watcher

    # Rich draws in a notebook only with ipywidgets; one line that is rewritten needs no package.
    if Console().is_jupyter:
        return _calling(*_line())
    if sys.stderr is not None and sys.stderr.isatty():
        return replace(watcher(shown=True), note=SILENT.note)
    return SILENT


def _calling(report: ProgressCallback, end: Callable[[], None] = lambda: None) -> ProgressCallbacks:
    """Return callbacks that call `report` after each step, and `end` after each piece of work."""

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
    """Return two functions: one rewrites a line on standard error, the other removes it."""
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
    """Describe an artifact, or a GGUF and what `convert_model` would build from it with `options`.

    Raises:
        GGUFError: a file is malformed.
        ArtifactError: a folder is not an artifact, or is damaged.
        RequestError: the options do not fit the model.
        StorageError: the file or folder cannot be read.
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
    """Convert a GGUF to an artifact in the folder `output` (default: NAME.anespec in the current folder).

    Calling it again continues an interrupted conversion. `replace` allows it to replace a different artifact.
    `jobs` is the number of shards built at once (None: chosen by the expected gain). `watch` receives
    progress.

    Raises:
        GGUFError: the file is malformed.
        UnsupportedModelError: this version does not convert such a model.
        RequestError: the options do not fit the model.
        UsageError: the output folder holds something else, and `replace` is False.
        StorageError: the disk is full, or cannot be written.
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
    """Run an artifact's gates, and write its report page.

    Call `require` of the result to raise an error if a gate failed.

    `changes` are fields of ValidateOptions, which take precedence over `options`. A recorded verdict that
    still holds is reused. `watch` receives progress.

    Raises:
        ArtifactError: the folder is not an artifact.
        RequestError: an option is out of range, or there is no such backend.
        UsageError: the options contradict each other.
        StorageError: the text of the quality gate cannot be read.
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
    """Load an artifact or a GGUF and return a model ready to generate.

    A GGUF is converted first. Use the model in a `with` block, or close it.

    `changes` are fields of LoadOptions, which take precedence over `options`. Gates without a verdict on this
    machine run in the background; the option `gates` changes that. A terminal or notebook shows the progress
    of loading, unless `progress` is False. A function given as `progress` is called with the current step and
    the share done, from 0 to 1 (None if it is unknown). `watch`, if given, receives progress and notes, and
    `progress` is ignored.

    Raises:
        ArtifactError: the folder is missing, damaged or of another version.
        RequestError: an option is out of range, or there is no such backend.
        GoldenGateError: a verdict says that the artifact does not compute what its GGUF means.
    """
    from anespec.runtime.options import LoadOptions

    chosen = (options or LoadOptions()).with_changes(**changes)
    return load_model(Path(artifact), chosen, watch or watcher_of(progress))
