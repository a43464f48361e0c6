"""What the probabilities that a source claims were worth so far.

Lanes go to the drafts of highest probability over all sequences, so claims must mean the same whoever makes
them. Claims are counted in bands of a tenth; a band starts out believed, with the weight of a few claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BANDS = 10
PRIOR_WEIGHT = 8.0
MOST_CLAIMS = 1000
"""Older claims count half once a band has so many, so that it follows what changes."""


@dataclass
class _Band:
    tried: float = 0.0
    right: float = 0.0


class Calibration:
    """Counts claims by source and band."""

    def __init__(self) -> None:
        self._bands: dict[tuple[str, int], _Band] = {}

    def adjusted(self, source: str, probability: float) -> float:
        """The claim, in (0, 1], weighed with how often such claims came true."""
        band = self._bands.get((source, _band(probability)))
        if band is None:
            return probability
        return (PRIOR_WEIGHT * probability + band.right) / (PRIOR_WEIGHT + band.tried)

    def learn(self, source: str, claims: Sequence[float], accepted: int) -> None:
        """Count a chain's claims, of which `accepted` came true; those after a miss say nothing."""
        for place, claim in enumerate(claims[: accepted + 1]):
            band = self._bands.setdefault((source, _band(claim)), _Band())
            band.tried += 1
            band.right += place < accepted
            if band.tried > MOST_CLAIMS:
                band.tried /= 2
                band.right /= 2


def _band(probability: float) -> int:
    return min(int(probability * BANDS), BANDS - 1)
