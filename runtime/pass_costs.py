"""What a pass costs, by its width and by how far it looks.

Where a pass over four rows costs what one over a single row does, guesses are free; where it costs twice as
much, they must be worth it. Figures decide how rows are spent, never which tokens come out.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WidthCost:
    """Seconds of a pass of so many rows that looks at no slots, and what each slot adds."""

    width: int
    seconds: float
    per_slot: float = 0.0


@dataclass(frozen=True)
class PassCosts:
    """Seconds of passes by width. `widths` ascend, and no pass costs more than a wider one.

    `change` is what a pass takes more whose width is not that of the pass before it.
    """

    widths: tuple[WidthCost, ...]
    change: float = 0.0

    @classmethod
    def of(cls, widths: Sequence[WidthCost], change: float = 0.0) -> "PassCosts":
        """From what was measured, in which a narrow pass may have been disturbed: it counts as the next wider
        one at most, since that could be run in its place."""
        kept: list[WidthCost] = []
        for each in sorted(widths, key=lambda cost: cost.width, reverse=True):
            wider = kept[-1] if kept else each
            kept.append(
                WidthCost(each.width, min(each.seconds, wider.seconds), min(each.per_slot, wider.per_slot))
            )
        return cls(tuple(reversed(kept)), change)

    def seconds(self, width: int, span: int) -> float:
        """What a pass of one of the widths costs that looks at so many slots of the first pool."""
        cost = self.widths[bisect_left(self.widths, width, key=lambda cost: cost.width)]
        return cost.seconds + span * cost.per_slot
