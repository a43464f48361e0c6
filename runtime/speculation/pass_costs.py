"""Hold the cost of a pass by its width and its span.

If a pass of four rows costs no more than a pass of one row, drafts are free; if it costs twice as much,
drafts must save as much. Costs decide how rows are used, never which tokens are generated.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, Self

DISTURBANCE = 0.8
"""A wider pass counts as cheaper only if it takes less than this share of a narrower pass's time. A smaller
difference may be a disturbed measurement."""

DRAFT_ROW_SECONDS = 1e-4
"""Seconds that a draft row takes outside of the pass: finding its likeliest tokens, and learning from them.
This is much for a pass of one millisecond, and little for a pass of thirty."""


@dataclass(frozen=True)
class WidthCost:
    """The seconds of a pass of `width` rows without the attention to slots, and the seconds that each slot of
    its span adds."""

    width: int
    seconds: float
    per_slot: float = 0.0


@dataclass(frozen=True)
class PassCosts:
    """The seconds of passes by width; `widths` ascend.

    A pass takes `change` seconds more if the pass before it had another width. `pace` is the ratio of the
    present time of passes to their time when they were measured.
    """

    widths: tuple[WidthCost, ...]
    change: float = 0.0
    pace: float = 1.0

    @classmethod
    def of(cls, widths: Sequence[WidthCost], change: float = 0.0) -> "PassCosts":
        """Return the costs of these widths, given in any order."""
        return cls(tuple(sorted(widths, key=lambda cost: cost.width)), change)

    @property
    def current(self) -> Self:
        """These costs themselves: they do not change with use. See CostModel."""
        return self

    def observe(self, width: int, span: int, seconds: float) -> None:
        """Learn nothing from a pass."""

    def overdue(self, width: int) -> bool:
        """Return False: constant costs need no trial."""
        return False

    def smoothed(self) -> "PassCosts":
        """Return the nearest costs that never fall from one usable width to the next.

        Unusable widths (a wider one is clearly cheaper) keep their costs.
        """
        if all(before.seconds <= behind.seconds for before, behind in pairwise(self.widths)):
            return self
        found, usable = self, self.usable([cost.width for cost in self.widths])
        while True:
            rising = dict(zip(usable, _rising([found.seconds(width, 0) for width in usable]), strict=True))
            widths = (replace(cost, seconds=rising.get(cost.width, cost.seconds)) for cost in found.widths)
            found = replace(found, widths=tuple(widths))
            # The wider pass that made a narrower width unusable may cost more now.
            now = found.usable([cost.width for cost in found.widths])
            if set(now) <= set(usable):
                return found
            usable = tuple(sorted({*usable, *now}))

    def usable(self, widths: Sequence[int]) -> tuple[int, ...]:
        """Return the widths for which no wider one is clearly cheaper.

        A wider pass can be cheaper: a Mac may run one shape on the Neural Engine, and a narrower one on the
        CPU.
        """
        cheapest = math.inf
        kept: list[int] = []
        for width in sorted(widths, reverse=True):
            if (seconds := self.seconds(width, 0)) * DISTURBANCE <= cheapest:
                kept.append(width)
            cheapest = min(cheapest, seconds)
        return tuple(reversed(kept))

    def seconds(self, width: int, span: int, drafts: int = 0) -> float:
        """Return the seconds of a pass of `width` rows with a span of `span` slots of the first pool.

        `width` is one of the widths; `drafts` of the rows are drafts.
        """
        cost = self.widths[bisect_left(self.widths, width, key=lambda cost: cost.width)]
        return cost.seconds + span * cost.per_slot + drafts * DRAFT_ROW_SECONDS * self.pace


class CostModel(Protocol):
    """The current costs of passes: constant ones, or a running estimate."""

    @property
    def current(self) -> PassCosts:
        """The current costs of passes, as far as they are known."""
        ...

    def observe(self, width: int, span: int, seconds: float) -> None:
        """Learn that a pass of this width and span in the first pool took `seconds`."""
        ...

    def overdue(self, width: int) -> bool:
        """Return whether a width has not run for so long that it should be tried, even if another seems
        better."""
        ...


def _rising(values: Sequence[float]) -> list[float]:
    """Return the nearest values, by least squares, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] >= total / count:
            before, many = pools.pop()
            total, count = total + before, count + many
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]
