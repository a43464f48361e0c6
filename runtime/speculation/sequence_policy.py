"""Decide whether to ask for a draft of one sequence, and for how many tokens: a proposal takes time, too."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anespec.runtime.drafters import Draft

# A claim is the probability that a source gives for a token. Rows go to the likeliest draft tokens of all
# sequences, so claims of different sources must be comparable. Each claim is multiplied by the acceptance
# rate of such claims so far.

PRIOR_TOKENS = 2.0
"""The expected and the accepted tokens that a rate begins with."""

WINDOW_TOKENS = 512.0
"""Expected tokens after which older ones count half, so that a rate follows changes."""

BINS = 10
"""The number of bins of claims; claims of a source in the same bin share a rate."""


@dataclass
class AcceptanceRate:
    """The number of accepted tokens, relative to the number that was expected: the sum of the claims."""

    expected: float = PRIOR_TOKENS
    accepted: float = PRIOR_TOKENS

    @property
    def factor(self) -> float:
        """The factor for further claims."""
        return self.accepted / self.expected

    def learn(self, claim: float, accepted: bool) -> None:
        """Count a claim and whether its token was accepted."""
        self.expected += claim
        self.accepted += accepted
        if self.expected > WINDOW_TOKENS:
            self.expected /= 2
            self.accepted /= 2


class ClaimRates:
    """The acceptance rates of all sequences' claims, by source and bin.

    The claims of all tenants are counted together, since their accuracy does not reveal any tokens.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int], AcceptanceRate] = {}

    def probability(self, source: str, claim: float) -> float:
        """Return the estimated probability for a claim; both are in (0, 1]."""
        rate = self._rates.get(_bin(source, claim))
        return claim if rate is None else min(1.0, claim * rate.factor)

    def learn(self, source: str, claim: float, accepted: bool) -> None:
        """Count a claim and whether its token was accepted."""
        self._rates.setdefault(_bin(source, claim), AcceptanceRate()).learn(claim, accepted)


class SequenceAcceptance:
    """The estimate of the probabilities of one sequence's draft tokens.

    It is the estimate from all sequences, lowered by the sequence's own acceptance rate. Without the latter,
    a text unlike the earlier ones would get drafts that do not pay.
    """

    def __init__(self, claims: ClaimRates) -> None:
        """Begin with the rates of all sequences' claims."""
        self._claims = claims
        self._own = AcceptanceRate()

    def probability(self, source: str, claim: float) -> float:
        """Return the estimated probability for a claim; both are in (0, 1]."""
        return self._claims.probability(source, claim) * min(1.0, self._own.factor)

    def learn(self, source: str, claims: Sequence[float], accepted: int) -> None:
        """Count the claims of a draft whose first `accepted` tokens were accepted.

        The tokens after the first rejected one were not tested, and do not count.
        """
        for place, claim in enumerate(claims[: accepted + 1]):
            self._own.learn(self._claims.probability(source, claim), place < accepted)
            self._claims.learn(source, claim, place < accepted)


def _bin(source: str, claim: float) -> tuple[str, int]:
    return source, min(int(claim * BINS), BINS - 1)


IDLE_SHARE = 0.003
"""The share of the passes' time that proposals may take while they save nothing."""

MAX_GROWTH = 1.1
"""The largest factor by which the estimated time of a proposal grows from one proposal to the next. The
estimate follows the fastest proposals, since other load only slows them down."""


REPEATED_CONTEXT, REPEATED_TOKENS = 3, 6
"""A text repeats itself if so many tokens in a row are those that followed the same context earlier; twice as
many after each time that drafts were tried for this reason in vain."""


class Repetition:
    """A watch for text that repeats itself, at a microsecond a token; drafts would have been right there."""

    def __init__(self) -> None:
        self._last: tuple[int, ...] = ()
        self._following: dict[tuple[int, ...], int] = {}
        self.repeated = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text; `repeated` is then how many of the last ones repeat an earlier place."""
        for token in tokens:
            self.repeated = self.repeated + 1 if self._following.get(self._last) == token else 0
            self._following[self._last] = token
            self._last = (*self._last, token)[-REPEATED_CONTEXT:]


@dataclass
class SharedExperience:
    """The experience with the drafts of all sequences, with which new sequences begin.

    `lost` is the lost time of the sequence that was charged last (see SequencePolicy), at most one token's
    time.
    """

    claims: ClaimRates = field(default_factory=ClaimRates)
    lost: float = 0.0


class SequencePolicy:
    """The policy for one sequence.

    `draft_len` is the number of tokens to ask for: twice the right tokens of the latest draft, at least
    `min_draft_len`, and no fewer than before if no token was wrong. `lost` is the time in seconds that
    proposals took beyond the time that right tokens saved. If it exceeds one token's time, proposals are
    skipped until they take a small share of the time (IDLE_SHARE), until right tokens have made up for it, or
    until the text begins to repeat itself.
    """

    def __init__(self, shared: SharedExperience, min_draft_len: int) -> None:
        """Begin a sequence with the experience of all sequences."""
        self.draft_len = self._min_draft_len = min_draft_len
        self.lost = shared.lost
        self._shared = shared
        self._acceptance = SequenceAcceptance(shared.claims)
        self._proposal_seconds = 0.0
        self._skip = 0
        self._repetition = Repetition()
        self._wakes_at = REPEATED_TOKENS
        self._is_woken = False

    def watch(self, committed: Sequence[int]) -> None:
        """Look at tokens that were added to the sequence, whether there was a proposal for them or not."""
        self._repetition.follow(committed)
        if self._skip and self._repetition.repeated >= self._wakes_at:
            self._skip, self.lost, self._is_woken = 0, 0.0, True

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
        """Compare a proposal with the committed tokens; return how many of its tokens were right.

        Proposed tokens that did not run count, too, so that they may run the next time. Proposed tokens
        beyond the committed ones cannot be judged.
        """
        pairs = list(zip(proposed.tokens, committed, strict=False))
        right = next((place for place, (guess, token) in enumerate(pairs) if guess != token), len(pairs))
        self._acceptance.learn(proposed.source, proposed.probabilities[: len(pairs)], right)
        if pairs:
            # If every token that could be judged is right, there may be more right ones: ask for no fewer.
            least = self.draft_len if right == len(pairs) else self._min_draft_len
            self.draft_len = max(least, 2 * right)
        return right

    def charge(self, seconds: float, right: int, token_seconds: float) -> None:
        """Compare the time of a proposal, and of learning from it, with the time that it saved.

        It saved the time of `right` tokens, each of which takes `token_seconds` without drafts.
        """
        known = self._proposal_seconds
        self._proposal_seconds = min(seconds, MAX_GROWTH * known) if known else seconds
        self.lost = max(0.0, self.lost + self._proposal_seconds - right * token_seconds)
        if right:
            self._is_woken, self._wakes_at = False, REPEATED_TOKENS
        self._shared.lost = min(self.lost, token_seconds)
        if self.lost > token_seconds:
            if self._is_woken:
                self._is_woken, self._wakes_at = False, 2 * self._wakes_at
            self._skip = int(self._proposal_seconds / (IDLE_SHARE * token_seconds))
