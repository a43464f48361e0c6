"""Plots of two axes. All places are percent of the plot, from its left and its top."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anespec.validate.page.scales import Tick

STEPS = (1, 2, 2.5, 5, 10)
FEWEST_TICKS = 4


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, with a mark every `step`."""

    low: float
    high: float
    step: float
    percent: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, percent: bool = False) -> "Axis":
        """Round ends around all values; around 0 to 1 where there is none."""
        found = [*values] or [0.0, 1.0]
        low, high = min(found), max(found)
        width = high - low or max(abs(high), 1.0)
        decade = 10.0 ** math.floor(math.log10(width / FEWEST_TICKS))
        step = max(size * decade for size in STEPS if size * decade <= width / FEWEST_TICKS * (1 + 1e-9))
        return cls(math.floor(low / step) * step, math.ceil((low + width) / step) * step, step, percent)

    def place(self, value: float) -> float:
        """Where a value stands, in percent from where the axis begins; what is outside, at the nearer end."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 3)

    @property
    def values(self) -> tuple[float, ...]:
        """The marks."""
        return tuple(self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1))

    def label(self, value: float) -> str:
        """What stands at a mark."""
        return f"{100 * value:.3g} %" if self.percent else f"{value:.3g}"


@dataclass(frozen=True)
class Dot:
    """A point; `look` is the class that colours it, `title` what it is in words."""

    x: float
    y: float
    look: str
    title: str


@dataclass(frozen=True)
class Column:
    """A bar from the bottom up."""

    x: float
    y: float
    width: float
    look: str
    title: str


@dataclass(frozen=True)
class Curve:
    """Points of a line, or the corners of an area, as SVG takes them."""

    points: str
    look: str


@dataclass(frozen=True)
class Plot:
    """A picture with its axes; `words` say it to who does not see it."""

    title: str
    words: str
    x_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    dots: tuple[Dot, ...] = ()
    columns: tuple[Column, ...] = ()
    curves: tuple[Curve, ...] = ()
    areas: tuple[Curve, ...] = ()


def ticks_across(axis: Axis) -> tuple[Tick, ...]:
    """The marks of an axis from left to right."""
    return tuple(Tick(axis.place(value), axis.label(value)) for value in axis.values)


def ticks_up(axis: Axis) -> tuple[Tick, ...]:
    """The marks of an axis from the bottom up."""
    return tuple(Tick(up(axis, value), axis.label(value)) for value in axis.values)


def up(axis: Axis, value: float) -> float:
    """Where a value of an axis from the bottom up stands, from the top."""
    return round(100 - axis.place(value), 3)


def curve(x: Axis, y: Axis, points: Sequence[tuple[float, float]], look: str) -> Curve:
    """A line through points."""
    return Curve(" ".join(f"{x.place(a)},{up(y, b)}" for a, b in points), look)
