"""What a pass costs, by its width and by how far it looks.

Where a pass over four rows costs what one over a single row does, guesses are free; where it costs twice as
much, they must be worth it. Figures decide how rows are spent, never which tokens come out.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

CLEARLY = 0.8
"""Of what a pass took: less is no disturbance of a measurement."""


@dataclass(frozen=True)
class WidthCost:
    """Seconds of a pass of so many rows that looks at no slots, and what each slot adds."""

    width: int
    seconds: float
    per_slot: float = 0.0


@dataclass(frozen=True)
class PassCosts:
    """Seconds of passes by width; `widths` ascend.

    `change` is what a pass takes more whose width is not that of the pass before it.
    """

    widths: tuple[WidthCost, ...]
    change: float = 0.0

    @classmethod
    def of(cls, widths: Sequence[WidthCost], change: float = 0.0) -> "PassCosts":
        """From what was measured, in any order."""
        return cls(tuple(sorted(widths, key=lambda cost: cost.width)), change)

    def usable(self, widths: Sequence[int]) -> tuple[int, ...]:
        """Those of these widths in whose place no wider one is clearly cheaper.

        A Mac may run the shape that a program was made for on the Neural Engine, a narrower one on the CPU.
        """
        cheapest = math.inf
        kept: list[int] = []
        for width in sorted(widths, reverse=True):
            if (seconds := self.seconds(width, 0)) * CLEARLY <= cheapest:
                kept.append(width)
            cheapest = min(cheapest, seconds)
        return tuple(reversed(kept))

    def seconds(self, width: int, span: int) -> float:
        """What a pass of one of the widths costs that looks at so many slots of the first pool."""
        cost = self.widths[bisect_left(self.widths, width, key=lambda cost: cost.width)]
        return cost.seconds + span * cost.per_slot
