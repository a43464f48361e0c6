"""A model loaded for one piece of work: the gates are asked once that is done what they have not said."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.console import notes
from anespec.leaving import keep
from anespec.runtime.options import LoadOptions, WhenGates, usual_gates
from anespec.watching import Watcher

if TYPE_CHECKING:
    from anespec.model import Model


@contextlib.contextmanager
def loaded_for_once(
    path: Path,
    loading: LoadOptions,
    watch: Watcher,
    check: "Callable[[Model], None]",
    shown: bool,
    name: str | None = None,
) -> "Iterator[Model]":
    """The model, while the block lasts; raises like `load_model`, and at its end like `close_and_check`.

    The gates are asked at its end where somebody chose that, or watches: where progress is `shown`, on a
    terminal.
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
