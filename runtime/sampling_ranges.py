"""What the numbers that say how tokens are drawn may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


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


RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "temperature": Range(0.0, 100.0),
        "top_k": Range(0, 2**31 - 1),
        "top_p": Range(0.0, 1.0),
        "min_p": Range(0.0, 1.0),
        "seed": Range(0, 2**64 - 1),
        "repetition_penalty": Range(0.01, 100.0),
        "presence_penalty": Range(-2.0, 2.0),
        "frequency_penalty": Range(-2.0, 2.0),
    }
)
"""By the names of SamplingParameters."""

BIASES = Range(-100.0, 100.0)
