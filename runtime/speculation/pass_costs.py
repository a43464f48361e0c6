"""The cost of a pass, by its width and its span.

Where a pass over four rows costs what one over a single row does, guesses are free; where it costs twice as
much, they must be worth it. Costs decide how rows are used, never which tokens are generated.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, Self

DISTURBANCE = 0.8
"""The share of a pass's time below which another's is no disturbed measurement, but cheaper."""

DRAFT_ROW_SECONDS = 1e-4
"""Seconds of a draft row outside the pass: finding its likeliest tokens, and learning from them. This is much
for a pass of a millisecond, little for one of thirty."""


@dataclass(frozen=True)
class WidthCost:
    """Seconds of a pass of so many rows that looks at no slots, and what each slot adds."""

    width: int
    seconds: float
    per_slot: float = 0.0


@dataclass(frozen=True)
class PassCosts:
    """Seconds of passes by width; `widths` ascend.

    `change` is what a pass takes more whose width is not that of the pass before it. `pace` is how many times
    as long as when they were timed passes take at present.
    """

    widths: tuple[WidthCost, ...]
    change: float = 0.0
    pace: float = 1.0

    @classmethod
    def of(cls, widths: Sequence[WidthCost], change: float = 0.0) -> "PassCosts":
        """From what was measured, in any order."""
        return cls(tuple(sorted(widths, key=lambda cost: cost.width)), change)

    @property
    def current(self) -> Self:
        """These: what is known here does not change with use. See CostModel."""
        return self

    def observe(self, width: int, span: int, seconds: float) -> None:
        """Learn nothing from a pass."""

    def overdue(self, width: int) -> bool:
        """No width is ever to be tried again."""
        return False

    def smoothed(self) -> "PassCosts":
        """The same where a usable width costs no less than a narrower usable one: the nearest such costs.

        Widths that are not usable, since a wider one is clearly cheaper, stay as they are.
        """
        if all(before.seconds <= behind.seconds for before, behind in pairwise(self.widths)):
            return self
        found, usable = self, self.usable([cost.width for cost in self.widths])
        while True:
            rising = dict(zip(usable, _rising([found.seconds(width, 0) for width in usable]), strict=True))
            widths = (replace(cost, seconds=rising.get(cost.width, cost.seconds)) for cost in found.widths)
            found = replace(found, widths=tuple(widths))
            # What made a narrower width unusable may cost more now.
            now = found.usable([cost.width for cost in found.widths])
            if set(now) <= set(usable):
                return found
            usable = tuple(sorted({*usable, *now}))

    def usable(self, widths: Sequence[int]) -> tuple[int, ...]:
        """Those of these widths in whose place no wider one is clearly cheaper.

        A Mac may run the shape that a program was made for on the Neural Engine, a narrower one on the CPU.
        """
        cheapest = math.inf
        kept: list[int] = []
        for width in sorted(widths, reverse=True):
            if (seconds := self.seconds(width, 0)) * DISTURBANCE <= cheapest:
                kept.append(width)
            cheapest = min(cheapest, seconds)
        return tuple(reversed(kept))

    def seconds(self, width: int, span: int, drafts: int = 0) -> float:
        """Return the cost of a pass of one of the widths with a span of that many slots of the first pool, of
        whose rows so many are drafts."""
        cost = self.widths[bisect_left(self.widths, width, key=lambda cost: cost.width)]
        return cost.seconds + span * cost.per_slot + drafts * DRAFT_ROW_SECONDS * self.pace


class CostModel(Protocol):
    """The current costs of passes: constant ones, or a running estimate."""

    @property
    def current(self) -> PassCosts:
        """The current costs of passes, as far as they are known."""
        ...

    def observe(self, width: int, span: int, seconds: float) -> None:
        """A pass of a width that looked at so many slots of the first pool took so many seconds."""
        ...

    def overdue(self, width: int) -> bool:
        """Return whether a width should be tried because it has not run for long, even if another one seems
        better."""
        ...


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest values, by least squares, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / count:
            before, many = pools.pop()
            total, count = total + before, count + many
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]
