"""Load a model for one task, and run the gates without a verdict after the task."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.cli.console import notes
from anespec.runtime.options import LoadOptions, WhenGates, usual_gates
from anespec.system.process_exit import keep
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.model import Model


@contextlib.contextmanager
def loaded_for_once(
    path: Path,
    loading: LoadOptions,
    watch: ProgressCallbacks,
    check: "Callable[[Model], None]",
    shown: bool,
    name: str | None = None,
) -> "Iterator[Model]":
    """Open the model for the block; raise like `load_model`, and at the end like `close_and_check`.

    The gates run at the end if `--gates later` was given, or if progress is `shown` on a terminal.
    """
    from anespec.model import load_model

    if loading.when_gates is WhenGates.LATER and not _asks_afterwards(loading, shown):
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


def _asks_afterwards(loading: LoadOptions, shown: bool) -> bool:
    is_chosen = (loading.gates or usual_gates()) is WhenGates.LATER
    return is_chosen or (shown and notes().is_terminal)
