"""Load a model for one task, and run the gates without a verdict after the task."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.cli.console import notes
from anespec.runtime.options import LoadOptions, WhenGates, usual_gates
from anespec.system.errors import AnespecError
from anespec.system.process_exit import keep
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.model import Model


SMALL_BYTES, SMALL_CONTEXT = 32_000_000, 2048
"""The bytes and the context in tokens of a small model, whose quick gates take seconds."""


@contextlib.contextmanager
def loaded_for_once(
    path: Path,
    loading: LoadOptions,
    watch: ProgressCallbacks,
    check: "Callable[[Model], None]",
    shown: bool,
    name: str | None = None,
    *,
    shows_drafts: bool = False,
) -> "Iterator[Model]":
    """Open the model for the block; raise like `load_model`, and at the end like `close_and_check`.

    The gates run at the end if `--gates later` was given, or if progress is `shown` on a terminal. Those of a
    small model take seconds, so without `--gates` they run first there, or where the answer `shows_drafts`.
    """
    from anespec.model import load_model

    is_chosen = (loading.gates or usual_gates()) is not None
    is_watched = shown and notes().is_terminal
    if not is_chosen and (is_watched or shows_drafts) and _is_small(path, loading.context):
        loading = loading.with_changes(gates=WhenGates.NOW)
    elif loading.when_gates is WhenGates.LATER and not (is_chosen or is_watched):
        loading = loading.with_changes(gates=WhenGates.NEVER)
    model = load_model(path, loading, watch, check, name, beside=False)
    try:
        yield model
    except BaseException:
        keep(model)
        raise
    if loading.when_gates is WhenGates.LATER:
        model.close_and_check(watch)
    else:
        keep(model)


def _is_small(path: Path, context: int | None) -> bool:
    """Return whether a model, a file or the folder of an artifact, has few bytes and a short context."""
    files = [path] if path.is_file() else [*path.rglob("*")]
    if not files or sum(file.stat().st_size for file in files if file.is_file()) > SMALL_BYTES:
        return False
    with contextlib.suppress(AnespecError):
        return (context or _context(path)) <= SMALL_CONTEXT
    return False


def _context(path: Path) -> int:
    """Return the context of an artifact, or the one that a GGUF's model was trained for."""
    from anespec.gguf.container import GGUFFile
    from anespec.manifests.store import Artifact

    if path.is_dir():
        return Artifact(path).manifest.context
    with GGUFFile(path) as file:
        return file.integer(f"{file.text('general.architecture')}.context_length")
