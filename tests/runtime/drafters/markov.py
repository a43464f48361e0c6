"""A model whose next token depends on the last two alone, and sessions that are run against it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anespec.runtime.drafters import Draft, DraftSession, DraftSource, Outcome, TopKLogits
from anespec.runtime.passes import Candidate, RowLogits

VOCABULARY = 50
TOP = 8


def likeliest(text: Sequence[int], model: int = 0, count: int = TOP) -> list[int]:
    """The tokens that the model holds likeliest behind a text, all different."""
    before = text[-2] if len(text) > 1 else 0
    first = (before * 7 + text[-1] * 13 + model * 5 + 3) % VOCABULARY
    return [(first + 11 * place) % VOCABULARY for place in range(count)]


def row(text: Sequence[int], model: int = 0) -> RowLogits:
    """What a row with this text before it finds."""
    return RowLogits(top=tuple(Candidate(token, 4.0 - i) for i, token in enumerate(likeliest(text, model))))


@dataclass
class Conversation:
    """A session and its text, as the model writes it. `accepted` are the tokens of drafts that were right."""

    session: DraftSession
    text: list[int]
    model: int = 0
    drafts: list[Draft] = field(default_factory=list)
    accepted: int = 0

    @classmethod
    def begun(cls, source: DraftSource, tenant: str, prompt: Sequence[int], model: int = 0) -> "Conversation":
        return cls(source.open(tenant, tuple(prompt)), list(prompt), model)

    def step(self, budget: int = 3) -> Draft:
        """One pass: ask for a draft, run it, commit what is right and one token more."""
        draft = self.session.propose(budget)
        assert len(draft.tokens) <= budget
        assert all(0 < chance <= 1 for chance in draft.probabilities)
        contexts = [[*self.text, *draft.tokens[:place]] for place in range(len(draft.tokens) + 1)]
        committed = []
        for place, context in enumerate(contexts):
            committed.append(likeliest(context, self.model)[0])
            if place == len(draft.tokens) or committed[-1] != draft.tokens[place]:
                break
        accepted = len(committed) - 1
        rows = TopKLogits([row(context, self.model) for context in contexts])
        self.session.observe(tuple(committed), Outcome(draft, accepted) if draft.tokens else Outcome(), rows)
        self.text += committed
        self.drafts.append(draft)
        self.accepted += accepted
        return draft
