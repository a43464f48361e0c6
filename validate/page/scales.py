"""Place values in a picture: all positions and widths are percent, so that pictures fit any page."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIN_LIMIT = 0.001
"""The smallest limit of a scale; differences from rounding should not fill a picture."""


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis."""

    position: float
    label: str


@dataclass(frozen=True)
class LogScale:
    """A scale from 10^first to 10^last."""

    first: int
    last: int

    @classmethod
    def around(cls, values: Iterable[float]) -> "LogScale":
        """Return whole decades around all positive values; one decade around 1 if there are none."""
        positive = [value for value in values if value > 0]
        low = math.floor(math.log10(min(positive, default=1)))
        high = math.ceil(math.log10(max(positive, default=1)))
        return cls(low, max(high, low + 1))

    def position(self, value: float) -> float:
        """Return the position of a value; a value outside is placed at the nearer end."""
        if value <= 0:
            return 0.0
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return round(100 * min(max(share, 0.0), 1.0), 3)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Return a tick for each decade, or for some of them if there are many."""
        step = 1 + (self.last - self.first) // 8
        return tuple(Tick(self.position(10.0**n), power(n)) for n in range(self.first, self.last + 1, step))


@dataclass(frozen=True)
class EvenScale:
    """A scale from -limit to limit."""

    limit: float

    @classmethod
    def around(cls, values: Iterable[float]) -> "EvenScale":
        """Return the scale with the smallest round limit that holds all values, at least MIN_LIMIT."""
        largest = max([MIN_LIMIT, *(abs(value) for value in values)])
        decade = 10.0 ** math.floor(math.log10(largest))
        return cls(next(step * decade for step in (1, 2, 5, 10) if step * decade >= largest))

    def position(self, value: float) -> float:
        """Return the position of a value."""
        return round(50 + 50 * value / self.limit, 3)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Return ticks at both ends, their halves and the middle."""
        return tuple(
            Tick(self.position(share * self.limit), f"{share * self.limit:+g}" if share else "0")
            for share in (-1, -0.5, 0, 0.5, 1)
        )


@dataclass(frozen=True)
class BarSegment:
    """A part of a bar. `look` is the CSS class that colours it, `title` its description."""

    start: float
    width: float
    look: str
    title: str
    label: str = ""


def stacked(parts: Sequence[tuple[float, str, str, str]]) -> tuple[BarSegment, ...]:
    """Place parts (size, look, title, label) side by side over the whole width.

    Parts of size 0 are left out.
    """
    total = sum(size for size, *_ in parts) or 1.0
    placed, start = [], 0.0
    for size, look, title, label in parts:
        width = 100 * size / total
        if size:
            placed.append(BarSegment(round(start, 3), round(width, 3), look, title, label))
        start += width
    return tuple(placed)


def power(exponent: int) -> str:
    """Return a power of ten as text: 0.01 as a decimal, 10 to the -5 with superscript digits."""
    if -3 <= exponent <= 3:
        return f"{10.0**exponent:g}"
    return "10" + "".join("⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".index(digit)] for digit in str(exponent))
