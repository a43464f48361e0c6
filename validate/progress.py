"""How a gate says how far it is."""

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol


class Progress(Protocol):
    """Takes what is being done now and, where that is known, the share of the gate that is behind: 0 to 1."""

    def __call__(self, note: str, share: float | None = None, /) -> None:
        """Take a note."""
        ...


StepReport = Callable[[str], None]
"""Takes what is being done now, where nobody knows how much there is to do."""


def in_steps(progress: Progress, steps: int) -> StepReport:
    """What takes a note at the beginning of each of so many steps, and counts them as equally long."""
    done = itertools.count()
    return lambda note: progress(note, min(next(done) / max(1, steps), 1.0))


def in_weighted_steps(progress: Progress, weights: Sequence[float]) -> StepReport:
    """What takes a note at the beginning of each step, where a step takes as long as its weight says."""
    whole = sum(weights) or 1.0
    behind = itertools.chain(itertools.accumulate(weights, initial=0.0), itertools.repeat(whole))
    return lambda note: progress(note, min(next(behind) / whole, 1.0))
