"""Calibrate the probabilities that a source claims, by their past accuracy.

Lanes go to the drafts of highest probability over all sequences, so claims of all sources must mean the same.
Claims are counted in bins of a tenth; a bin starts with trust in the claims, with the weight of a few claims.
All owners' claims are counted together, since their accuracy does not reveal their tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BINS = 10
PRIOR_WEIGHT = 8.0
MOST_CLAIMS = 1000
"""Older claims count half once a bin has so many, so that it follows what changes."""

PRIOR_HITS = 4.0
"""Claims of a sequence that are taken to have come true as expected before its first."""

MOST_HITS = 64.0
"""Older ones count half once so many were expected to come true."""


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


@dataclass
class Belief:
    """Calibrate one sequence's claims: with the accuracy of such claims in all sequences, and less if its own
    were right less often. Without this, chances of 0.8 on a text unlike those before, of which half came
    true, made a pass of four rows the more expensive choice."""

    calibration: Calibration
    expected: float = PRIOR_HITS
    right: float = PRIOR_HITS

    def adjusted(self, source: str, probability: float) -> float:
        """The claim, in (0, 1], weighed with both."""
        return self.calibration.adjusted(source, probability) * min(1.0, self.right / self.expected)

    def learn(self, source: str, claims: Sequence[float], accepted: int) -> None:
        """Count a chain's claims for this sequence and for all; see Calibration."""
        tested = claims[: accepted + 1]
        self.expected += sum(self.calibration.adjusted(source, claim) for claim in tested)
        self.right += min(accepted, len(tested))
        if self.expected > MOST_HITS:
            self.expected /= 2
            self.right /= 2
        self.calibration.learn(source, claims, accepted)


def _bin(probability: float) -> int:
    return min(int(probability * BINS), BINS - 1)
