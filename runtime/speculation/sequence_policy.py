"""Decide whether to ask for a draft of one sequence, and how far ahead: a proposal takes time, too."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anespec.runtime.drafters import Draft

# Rows go to the likeliest draft tokens of all sequences, so the claims of all sources must mean the same.
# Each claim is multiplied by the acceptance rate of such claims so far.

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

    All tenants' claims are counted together, since their accuracy does not reveal their tokens.
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


IDLE_SHARE = 0.003
"""The share of the passes' time that proposals may take while they save nothing."""

MOST_GROWTH = 1.1
"""The most that the estimated time of a proposal grows from one to the next. The fastest proposals count,
since other load only slows them down."""


@dataclass
class SharedExperience:
    """What the drafts of all sequences have shown, which new sequences begin with.

    `lost` is that of the sequence that was asked for last (see SequencePolicy), and at most one token's time.
    """

    claims: ClaimRates = field(default_factory=ClaimRates)
    lost: float = 0.0


class SequencePolicy:
    """The policy for one sequence.

    `draft_len` is the number of tokens to ask for, at least `min_draft_len`: twice as many as were right of
    the latest draft, and no fewer than before if none was wrong. `lost` is the time in seconds that proposals
    took beyond the time that right tokens saved. If it exceeds one token's time, proposals are skipped until
    they take a small share of the time, or until right tokens have made up for it.
    """

    def __init__(self, shared: SharedExperience, min_draft_len: int) -> None:
        """Begin a sequence."""
        self.draft_len = self._min_draft_len = min_draft_len
        self.lost = shared.lost
        self._shared = shared
        self._acceptance = SequenceAcceptance(shared.claims)
        self._proposal_seconds = 0.0
        self._skip = 0

    def may_propose(self) -> bool:
        """Return whether to ask for a draft for the current pass; call it once for each pass."""
        if not self._skip:
            return True
        self._skip -= 1
        return False

    def estimated(self, draft: Draft) -> Draft:
        """Return the draft with estimated probabilities in place of the source's claims."""
        found = (self._acceptance.probability(draft.source, claim) for claim in draft.probabilities)
        return replace(draft, probabilities=tuple(found))

    def learn(self, proposed: Draft, committed: Sequence[int]) -> int:
        """Compare a proposal with the tokens that the text went on with; return how many were right.

        Tokens that did not run count, too: then they may run the next time. Tokens behind the committed ones
        say nothing.
        """
        pairs = list(zip(proposed.tokens, committed, strict=False))
        right = next((place for place, (guess, token) in enumerate(pairs) if guess != token), len(pairs))
        self._acceptance.learn(proposed.source, proposed.probabilities[: len(pairs)], right)
        if pairs:
            # As much of a draft as was run may be right, and much less than was asked for.
            least = self.draft_len if right == len(pairs) else self._min_draft_len
            self.draft_len = max(least, 2 * right)
        return right

    def charge(self, seconds: float, right: int, token_seconds: float) -> None:
        """Count the time of a proposal, and of learning from it, against the time that it saved: that of
        `right` tokens, each of which takes `token_seconds` without drafts."""
        known = self._proposal_seconds
        self._proposal_seconds = min(seconds, MOST_GROWTH * known) if known else seconds
        self.lost = max(0.0, self.lost + self._proposal_seconds - right * token_seconds)
        self._shared.lost = min(self.lost, token_seconds)
        if self.lost > token_seconds:
            self._skip = int(self._proposal_seconds / (IDLE_SHARE * token_seconds))
