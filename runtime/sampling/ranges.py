"""Ranges of numbers, as people are told of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Numbers from `lowest` to `highest`, both included; NaN is in no range."""

    lowest: float
    highest: float

    def __contains__(self, value: float) -> bool:
        return self.lowest <= value <= self.highest

    def __str__(self) -> str:
        if self.of_integers:
            return f"between {self.lowest} and {self.highest}"
        return f"between {self.lowest:g} and {self.highest:g}"

    @property
    def of_integers(self) -> bool:
        """Whether only integers are meant."""
        return isinstance(self.lowest, int)
