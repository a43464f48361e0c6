"""What the probabilities that a source claims were worth so far.

Lanes go to the drafts of highest probability over all sequences, so claims must mean the same whoever makes
them. Claims are counted in bins of a tenth; a bin starts out believed, with the weight of a few claims. All
owners' claims are counted together: how often they come true does not tell what they were.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BINS = 10
PRIOR_WEIGHT = 8.0
MOST_CLAIMS = 1000
"""Older claims count half once a bin has so many, so that it follows what changes."""


@dataclass
class _Bin:
    tried: float = 0.0
    right: float = 0.0


class Calibration:
    """Counts claims by source and bin."""

    def __init__(self) -> None:
        self._bins: dict[tuple[str, int], _Bin] = {}

    def adjusted(self, source: str, probability: float) -> float:
        """The claim, in (0, 1], weighed with how often such claims came true."""
        counted = self._bins.get((source, _bin(probability)))
        if counted is None:
            return probability
        return (PRIOR_WEIGHT * probability + counted.right) / (PRIOR_WEIGHT + counted.tried)

    def learn(self, source: str, claims: Sequence[float], accepted: int) -> None:
        """Count a chain's claims, of which `accepted` came true; those after a miss say nothing."""
        for place, claim in enumerate(claims[: accepted + 1]):
            counted = self._bins.setdefault((source, _bin(claim)), _Bin())
            counted.tried += 1
            counted.right += place < accepted
            if counted.tried > MOST_CLAIMS:
                counted.tried /= 2
                counted.right /= 2


def _bin(probability: float) -> int:
    return min(int(probability * BINS), BINS - 1)
