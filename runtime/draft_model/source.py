"""Draft with a second model: a source whose sessions ask it to continue their texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anespec.runtime.draft_model.continuing import Continuation, Continuing
from anespec.runtime.draft_model.translation import Translation
from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, TopKLogits
from anespec.runtime.kv.prefixes import common_prefix

NAME = "model"

AHEAD = 16
"""The tokens that are computed beyond a draft while a pass verifies it, if the model has its own device. They
serve if the whole draft is right, and the token after it is the expected one."""

MOST_TOKENS = 15
"""The most tokens of a draft, which is as many as a pass of 16 rows verifies."""

USUAL_TOKENS = 4
"""The tokens of a proposal, for the estimate of its time."""


@dataclass(frozen=True)
class DraftLimits:
    """The most tokens of a draft, and the least probability that the model must give each."""

    most: int = MOST_TOKENS
    least: float = 0.0


USUAL_LIMITS = DraftLimits()


class DraftModelSession:
    """A session that continues one text with the second model."""

    wants_top = 0

    def __init__(
        self, model: Continuing, translation: Translation, tenant: str, ahead: int, limits: DraftLimits
    ) -> None:
        """Begin to compute the state of the text that `translation` has; see AHEAD for `ahead`."""
        self._model = model
        self._translation = translation
        self._tenant = tenant
        self._ahead = ahead
        self._limits = limits
        self._continuation = self._begin(1)
        self._was_ready = False
        self._first: int | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the text's state is computed, so that a proposal brings tokens."""
        known = self._continuation
        self._was_ready = self._was_ready or known.is_over or bool(known.tokens)
        return self._was_ready

    def propose(self, budget: int) -> Draft:
        """Return a draft of at most `budget` tokens; it is empty while the text's state is computed."""
        budget = min(budget, self._limits.most)
        self.start(budget)
        self._model.wait(lambda: self.is_done(budget))
        return self.draft(budget)

    def start(self, budget: int) -> None:
        """Compute the tokens of a draft, unless they are computed already."""
        if not self.is_ready:
            return
        known = self._continuation
        self._first = self._following()
        if self._first is None or (known.is_over and len(known.tokens) - self._first < budget):
            self._model.cancel(known)
            self._continuation = self._begin(budget)
            self._first = 0

    def is_done(self, budget: int) -> bool:
        """Return whether enough tokens are computed, or no more will be."""
        known = self._continuation
        return self._first is None or known.is_over or len(known.tokens) - self._first >= budget

    def draft(self, budget: int) -> Draft:
        """Return the draft from the tokens that are computed, once `start` was called."""
        if self._first is None:
            return Draft()
        known, wanted = self._continuation, slice(self._first, self._first + budget)
        guess = self._translation.translate(known.tokens[wanted], known.probabilities[wanted])
        return Draft(guess.tokens, guess.probabilities, NAME).first(budget)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Add tokens to the text."""
        self._translation.extend(committed)

    def close(self) -> None:
        """Stop the second model's work for this text."""
        self._model.cancel(self._continuation)

    def _begin(self, budget: int) -> Continuation:
        continuation = Continuation(
            tuple(self._translation.text),
            budget + self._ahead,
            self._tenant,
            self._translation.allowed,
            self._limits.least,
        )
        self._model.begin(continuation)
        return continuation

    def _following(self) -> int | None:
        """Return the index of the first computed token that the text does not have yet.

        None if the text went another way.
        """
        known, text = self._continuation, self._translation.text
        is_shorter = len(text) < len(known.text)
        if is_shorter or common_prefix((*known.text, *known.tokens), text) < len(text):
            return None
        return len(text) - len(known.text)


class DraftModelSource:
    """A source that runs a second model. A session's first drafts come once its text's state is computed."""

    name = NAME

    def __init__(
        self,
        model: Continuing,
        translation: Callable[[], Translation],
        release: Callable[[], None] = lambda: None,
        *,
        has_own_device: bool = False,
        limits: DraftLimits = USUAL_LIMITS,
    ) -> None:
        """Translate each text with a new `translation`; `release` is called after the model was closed.

        If the model `has_own_device`, it computes further tokens while a pass verifies a draft.
        """
        self._model = model
        self._translation = translation
        self._release = release
        self._ahead = AHEAD if has_own_device else 0
        self._limits = limits
        self._is_closed = False

    @property
    def cost(self) -> DraftCost:
        """The time of a usual proposal, by the latest passes. Translating a long text takes long."""
        return DraftCost(1e6 * USUAL_TOKENS * self._model.pass_seconds, opens_aside=True)

    def weigh(self, token_seconds: float) -> None:
        """Stop a draft where its next token is worth less than the pass that computes it."""
        self._model.stop_below(min(1.0, self._model.pass_seconds / token_seconds))

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftModelSession:
        """Open a session and begin to compute the state of its text; a reference is not used."""
        translation = self._translation()
        translation.extend(prompt)
        return DraftModelSession(self._model, translation, tenant, self._ahead, self._limits)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return a draft for each session; the second model computes them in shared passes."""
        most = self._limits.most
        own = [(each, min(budget, most)) for each, budget in asks if isinstance(each, DraftModelSession)]
        for session, budget in own:
            session.start(budget)
        self._model.wait(lambda: all(session.is_done(budget) for session, budget in own))
        return [session.draft(budget) for session, budget in own]

    def close(self) -> None:
        """End the second model; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._model.close()
            self._release()
