"""Draft with n-grams, and with a second model where it brings more than its time is worth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from time import perf_counter

from anespec.runtime.draft_model.source import DraftModelSession, DraftModelSource
from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource, Outcome, TopKLogits
from anespec.runtime.kv.prefixes import common_prefix
from anespec.runtime.speculation.sequence_policy import ClaimRates

BINS = 5
"""The bins of the n-grams' expected tokens, for which the second model's gain is counted apart: it gains
little where n-grams are sure."""

SURE_TOKENS = 4.0
"""Expected tokens from which a draft of n-grams is in the last bin."""

FIRST_TRIALS = 4
"""The proposals of the second model in each bin before its gain counts."""

FIRST_INTERVAL, MAX_INTERVAL = 16, 512
"""Proposals without the second model between two trials, at first and at most; the number doubles with each
trial that does not pay."""

DECAY = 0.95
"""The weight of earlier trials when one is added, so that averages follow the text."""


@dataclass
class Gain:
    """What the second model brought in one bin: right tokens beyond those of n-grams, and seconds.

    Both are decaying averages.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    trials: int = 0
    interval: int = FIRST_INTERVAL
    skipped: int = 0

    def pays(self, token_seconds: float) -> bool:
        """Return whether the right tokens took less time than passes without drafts."""
        return self.tokens * token_seconds > self.seconds

    def is_wanted(self, token_seconds: float | None) -> bool:
        """Return whether to ask the second model now: it pays, or a trial is due.

        Without a known time of a token it is always asked.
        """
        is_tried = self.trials < FIRST_TRIALS or self.skipped >= self.interval
        return is_tried or token_seconds is None or self.pays(token_seconds)

    def learn(self, tokens: int, seconds: float, token_seconds: float | None) -> None:
        """Add a proposal: the tokens that it brought, and its time."""
        weight = max(1 - DECAY, 1 / (self.trials + 1))
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)
        self.trials += 1
        if token_seconds is not None and self.pays(token_seconds):
            self.interval = FIRST_INTERVAL
        elif self.skipped >= self.interval:
            self.interval = min(2 * self.interval, MAX_INTERVAL)
        self.skipped = 0


@dataclass(frozen=True)
class _Proposed:
    """The drafts of one pass; the second model's is None if it was not asked, and took `seconds`."""

    gain: Gain
    ngrams: Draft
    model: Draft | None = None
    seconds: float = 0.0


class WeighedSession:
    """A session of the n-grams, and one of the second model for the same text from when it is wanted on."""

    def __init__(
        self, source: "WeighedSource", ngrams: DraftSession, tenant: str, text: Sequence[int]
    ) -> None:
        self._source = source
        self._tenant = tenant
        self._text = list(text)
        self.ngrams = ngrams
        self.model: DraftModelSession | None = None
        self.proposed: _Proposed | None = None

    @property
    def wants_top(self) -> int:
        """The likeliest tokens that the n-grams' session needs."""
        return self.ngrams.wants_top

    def ready_model(self) -> DraftModelSession | None:
        """Return the second model's session, after opening it if there is none.

        None while the text's state is computed.
        """
        if self.model is None:
            self.model = self._source.model.open(self._tenant, self._text)
        return self.model if self.model.is_ready else None

    def propose(self, budget: int) -> Draft:
        """Return the draft that should bring more tokens."""
        (draft,) = self._source.propose([(self, budget)])
        return draft

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Compare both drafts with the committed tokens, and let both sessions learn from them."""
        if self.proposed is not None:
            self._source.learn(self.proposed, committed)
            self.proposed = None
        self._text += committed
        self.ngrams.observe(committed, outcome, rows)
        if self.model is not None:
            self.model.observe(committed, outcome, rows)

    def close(self) -> None:
        """Close both sessions."""
        self.ngrams.close()
        if self.model is not None:
            self.model.close()


class WeighedSource:
    """A source of n-grams beside a second model; the model is asked where that has paid so far."""

    def __init__(self, ngrams: DraftSource, model: DraftModelSource) -> None:
        """Take both sources, which are closed with this one."""
        self.ngrams = ngrams
        self.model = model
        self._gains = [Gain() for _ in range(BINS)]
        self._claims = ClaimRates()
        self._token_seconds: float | None = None

    @property
    def name(self) -> str:
        """The name of the n-grams' source, and that of the model."""
        return f"{self.ngrams.name}+{self.model.name}"

    @property
    def cost(self) -> DraftCost:
        """The time of a proposal with both sources."""
        ngrams, model = self.ngrams.cost, self.model.cost
        return DraftCost(ngrams.microseconds + model.microseconds, opens_aside=True)

    def weigh(self, token_seconds: float) -> None:
        """Take the time of a token without drafts."""
        self._token_seconds = token_seconds
        self.model.weigh(token_seconds)

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> WeighedSession:
        """Open a session of each source."""
        session = WeighedSession(self, self.ngrams.open(tenant, prompt, reference), tenant, prompt)
        if self._pays_anywhere():
            session.ready_model()
        return session

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return for each session the draft of whichever source should bring more tokens."""
        own = [(session, budget) for session, budget in asks if isinstance(session, WeighedSession)]
        drafts = self.ngrams.propose([(session.ngrams, budget) for session, budget in own])
        proposed = [_Proposed(self._gain(draft), draft) for draft in drafts]
        asked: dict[int, tuple[DraftSession, int]] = {}
        for number, ((session, budget), each) in enumerate(zip(own, proposed, strict=True)):
            each.gain.skipped += 1
            if each.gain.is_wanted(self._token_seconds) and (model := session.ready_model()) is not None:
                asked[number] = (model, budget)
        if asked:
            began = perf_counter()
            found = self.model.propose([*asked.values()])
            seconds = (perf_counter() - began) / len(asked)
            for number, draft in zip(asked, found, strict=True):
                proposed[number] = replace(proposed[number], model=draft, seconds=seconds)
        for (session, _), each in zip(own, proposed, strict=True):
            session.proposed = each
        return [replace(self._better(each), weighed_seconds=each.seconds) for each in proposed]

    def learn(self, proposed: _Proposed, committed: Sequence[int]) -> None:
        """Compare the drafts of a pass with the tokens that it committed."""
        right = self._learn_claims(proposed.ngrams, committed)
        if proposed.model is not None:
            brought = self._learn_claims(proposed.model, committed) - right
            proposed.gain.learn(max(0, brought), proposed.seconds, self._token_seconds)

    def close(self) -> None:
        """Close both sources."""
        self.model.close()
        self.ngrams.close()

    def _pays_anywhere(self) -> bool:
        """Return whether the second model pays in some bin, or was never tried."""
        seconds, tried = self._token_seconds, [gain for gain in self._gains if gain.trials]
        return not tried or seconds is None or any(gain.pays(seconds) for gain in tried)

    def _better(self, proposed: _Proposed) -> Draft:
        if proposed.model is None or self._expected(proposed.model) <= self._expected(proposed.ngrams):
            return proposed.ngrams
        return proposed.model

    def _gain(self, ngrams: Draft) -> Gain:
        return self._gains[min(int(self._expected(ngrams) / SURE_TOKENS * (BINS - 1)), BINS - 1)]

    def _expected(self, draft: Draft) -> float:
        """Return how many tokens of a draft should be right."""
        chances = (self._claims.probability(draft.source, claim) for claim in draft.probabilities)
        return float(sum(accumulate(chances, mul)))

    def _learn_claims(self, draft: Draft, committed: Sequence[int]) -> int:
        """Count a draft's claims as far as they can be judged; return how many of its tokens were right."""
        right = common_prefix(draft.tokens, committed)
        judged = min(right + 1, len(draft.tokens), len(committed))
        for place, claim in enumerate(draft.probabilities[:judged]):
            self._claims.learn(draft.source, claim, place < right)
        return right
