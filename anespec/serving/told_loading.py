"""A watcher that also records the progress of loading in a daemon's lifecycle, for clients that wait."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anespec.runtime.server.lifecycle import Lifecycle
from anespec.watching import Watcher

if TYPE_CHECKING:
    from anespec.validate.progress import Progress, StepReport


def telling(watch: Watcher, lifecycle: Lifecycle) -> Watcher:
    """Return a watcher that does what `watch` does, and keeps `lifecycle.loading`.

    Clients see that without a key, so it has the kind of work (`converting`) and its share, but no name.
    """

    @contextlib.contextmanager
    def steps(title: str) -> "Iterator[StepReport]":
        with watch.steps(title) as report:
            lifecycle.loading = _kind(title)
            yield report

    @contextlib.contextmanager
    def shares(title: str) -> "Iterator[Progress]":
        with watch.shares(title) as report:
            lifecycle.loading = _kind(title)

            def tell(note: str, share: float | None = None, /) -> None:
                lifecycle.loading = _kind(title) if share is None else f"{_kind(title)}, {share:.0%}"
                report(note, share)

            yield tell

    return Watcher(watch.note, steps, shares)


def _kind(title: str) -> str:
    return title.partition(" ")[0]
