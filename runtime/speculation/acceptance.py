"""Estimate the probability that a draft token is accepted.

Rows go to the likeliest draft tokens of all sequences, so the claims of all sources must mean the same. Each
claim is multiplied by the acceptance rate of such claims so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PRIOR = 2.0
"""Tokens, expected and accepted, that a rate begins with."""

WINDOW = 512.0
"""Expected tokens after which the older ones count half, so that a rate follows what changes."""

BINS = 10
"""Claims of a source within the same tenth share a rate."""


@dataclass
class AcceptanceRate:
    """The number of accepted tokens, relative to the number that was expected: the sum of the claims."""

    expected: float = PRIOR
    accepted: float = PRIOR

    @property
    def factor(self) -> float:
        """Return what a further claim is to be multiplied by."""
        return self.accepted / self.expected

    def learn(self, claim: float, accepted: bool) -> None:
        """Count a claim whose token was accepted or not."""
        self.expected += claim
        self.accepted += accepted
        if self.expected > WINDOW:
            self.expected /= 2
            self.accepted /= 2


class ClaimRates:
    """The acceptance rates of all sequences' claims, by source and tenth.

    All owners' claims are counted together, since their accuracy does not reveal their tokens.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int], AcceptanceRate] = {}

    def probability(self, source: str, claim: float) -> float:
        """Return the estimated probability for a claim; both are in (0, 1]."""
        rate = self._rates.get(_bin(source, claim))
        return claim if rate is None else min(1.0, claim * rate.factor)

    def learn(self, source: str, claim: float, accepted: bool) -> None:
        """Count a claim whose token was accepted or not."""
        self._rates.setdefault(_bin(source, claim), AcceptanceRate()).learn(claim, accepted)


class SequenceAcceptance:
    """The probabilities of one sequence's draft tokens: those of all sequences, lowered by the sequence's own
    acceptance rate. Without the latter, texts unlike those before get drafts that do not pay."""

    def __init__(self, claims: ClaimRates) -> None:
        """Begin with what all sequences' claims have shown."""
        self._claims = claims
        self._own = AcceptanceRate()

    def probability(self, source: str, claim: float) -> float:
        """Return the estimated probability for a claim; both are in (0, 1]."""
        return self._claims.probability(source, claim) * min(1.0, self._own.factor)

    def learn(self, source: str, claims: Sequence[float], accepted: int) -> None:
        """Count the claims of a draft whose first `accepted` tokens were accepted.

        Those after the first rejected token were not tested.
        """
        for place, claim in enumerate(claims[: accepted + 1]):
            self._own.learn(self._claims.probability(source, claim), place < accepted)
            self._claims.learn(source, claim, place < accepted)


def _bin(source: str, claim: float) -> tuple[str, int]:
    return source, min(int(claim * BINS), BINS - 1)
