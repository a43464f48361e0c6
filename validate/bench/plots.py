"""Lay out plots with two axes. All positions are percent of the plot, from its left and its top."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anespec.validate.page.scales import Tick

STEPS = (1, 2, 2.5, 5, 10)
MIN_TICKS = 4


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, with a tick every `step`."""

    low: float
    high: float
    step: float
    percent: bool = False

    @classmethod
    def around(cls, values: Iterable[float], *, percent: bool = False) -> "Axis":
        """Return an axis with round ends that holds all values; from 0 to 1 if there are none."""
        found = [*values] or [0.0, 1.0]
        low, high = min(found), max(found)
        width = high - low or max(abs(high), 1.0)
        decade = 10.0 ** math.floor(math.log10(width / MIN_TICKS))
        step = max(size * decade for size in STEPS if size * decade <= width / MIN_TICKS * (1 + 1e-9))
        return cls(math.floor(low / step) * step, math.ceil((low + width) / step) * step, step, percent)

    def place(self, value: float) -> float:
        """Return the position of a value in percent of the axis, limited to its ends."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 3)

    @property
    def values(self) -> tuple[float, ...]:
        """Return the values of the ticks."""
        return tuple(self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1))

    def label(self, value: float) -> str:
        """Return the label of a tick."""
        return f"{100 * value:.3g} %" if self.percent else f"{value:.3g}"


@dataclass(frozen=True)
class Dot:
    """A point; `look` is the CSS class that colours it, `title` its description."""

    x: float
    y: float
    look: str
    title: str


@dataclass(frozen=True)
class Curve:
    """A line, as the `points` of an SVG polyline."""

    points: str
    look: str


@dataclass(frozen=True)
class Plot:
    """A plot with its axes; `words` describe it to people who cannot see it.

    `key` has the look and the name of each colour.
    """

    title: str
    words: str
    x_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    dots: tuple[Dot, ...] = ()
    curves: tuple[Curve, ...] = ()
    key: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Series:
    """Points of one colour, joined by a line; `line` has the points of another one, such as a fit."""

    name: str
    points: tuple[tuple[float, float], ...]
    joined: bool = True
    line: tuple[tuple[float, float], ...] = ()


MOST_COLOURS = 8
"""How many series have a colour of their own; further ones begin again with the first."""


def series_plot(
    title: str,
    x_label: str,
    series: Sequence[Series],
    *,
    x_percent: bool = False,
    y_percent: bool = False,
    y_shown: Iterable[float] = (),
) -> Plot | None:
    """Return a plot of several series; None if they have no points. The values `y_shown` are on its axis.

    The ticks across are the values themselves if they are few.
    """
    points = [point for each in series for point in (*each.points, *each.line)]
    if not points:
        return None
    x = Axis.around([a for a, _ in points], percent=x_percent)
    y = Axis.around([*(b for _, b in points), *y_shown], percent=y_percent)
    values = sorted({a for each in series for a, _ in each.points})
    looks = [f"c{number % MOST_COLOURS + 1}" for number in range(len(series))]
    dots = [
        Dot(x.place(a), up(y, b), look, f"{each.name}: {y.label(b)} at {x.label(a)}")
        for look, each in zip(looks, series, strict=True)
        for a, b in each.points
    ]
    lines = [
        curve(x, y, line, look)
        for look, each in zip(looks, series, strict=True)
        for line in (each.points if each.joined else (), each.line)
        if line
    ]
    is_few = len(values) <= MOST_COLOURS + 1 and not x_percent
    return Plot(
        title,
        "; ".join(dot.title for dot in dots),
        x_label,
        tuple(Tick(x.place(value), x.label(value)) for value in values) if is_few else ticks_across(x),
        ticks_up(y),
        dots=tuple(dots),
        curves=tuple(lines),
        key=tuple(zip(looks, (each.name for each in series), strict=True)),
    )


def ticks_across(axis: Axis) -> tuple[Tick, ...]:
    """Return the ticks of a horizontal axis."""
    return tuple(Tick(axis.place(value), axis.label(value)) for value in axis.values)


def ticks_up(axis: Axis) -> tuple[Tick, ...]:
    """Return the ticks of a vertical axis."""
    return tuple(Tick(up(axis, value), axis.label(value)) for value in axis.values)


def up(axis: Axis, value: float) -> float:
    """Return the position of a value on a vertical axis, in percent from the top."""
    return round(100 - axis.place(value), 3)


def curve(x: Axis, y: Axis, points: Sequence[tuple[float, float]], look: str) -> Curve:
    """Return a line through points."""
    return Curve(" ".join(f"{x.place(a)},{up(y, b)}" for a, b in points), look)
