"""Draft by prompt lookup: copy what followed an earlier match of the text's end, in text or reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from anespec.runtime.drafters import (
    REFERENCE,
    Draft,
    DraftCost,
    DraftSession,
    Outcome,
    TopKLogits,
    propose_each,
)
from anespec.runtime.options import LONGEST_MATCH
from anespec.system.errors import RequestError

_PRIOR_WEIGHT = 4.0
_BARRIER = (1 << 32) - 1
"""A separator between reference and prompt. It is no token, so no match crosses it."""


@dataclass(frozen=True)
class LookupSettings:
    """The settings that decide which earlier match is copied from.

    The longest suffix of the text, of `n_max` down to `n_min` tokens, that occurs earlier is taken, at its
    most recent or its leftmost occurrence. Hugging Face's prompt lookup is (n_max=2, choose="leftmost"),
    llama.cpp's ngram-simple is n_min = n_max.

    Raises:
        RequestError: a value is out of its range.
    """

    n_max: int = 16
    n_min: int = 1
    choose: Literal["recent", "leftmost"] = "recent"

    def __post_init__(self) -> None:
        if not 1 <= self.n_min <= self.n_max <= LONGEST_MATCH:
            raise RequestError(
                f"lookup matches are {self.n_min} to {self.n_max} tokens long; both numbers must be between "
                f"1 and {LONGEST_MATCH}, the smaller one first"
            )
        if self.choose not in ("recent", "leftmost"):
            raise RequestError(f"lookup chooses {self.choose!r}; it must choose recent or leftmost")


class LookupSource:
    """A source whose sessions copy from their own text and reference; they share nothing."""

    name = "lookup"
    cost = DraftCost(microseconds=20, opens_aside=True)

    def __init__(self, settings: LookupSettings | None = None) -> None:
        self._settings = settings or LookupSettings()

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> "LookupSession":
        """Open a session that has indexed the reference and the prompt."""
        return LookupSession(self._settings, prompt, reference or ())

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Ask the sessions one after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Do nothing: the source holds nothing beside its sessions."""


class LookupSession:
    """A session that proposes the tokens after an earlier occurrence of the text's end.

    If the copy reaches the end of the text, it continues with its own tokens, which is right for periodic
    text.

    The index is a trie over reversed text: the path from its root to a node spells a suffix backwards, and
    the node stores where that suffix ended (last, or first). A node gets children only once its suffix
    recurs. So novel text costs one or two nodes per token, and adding a token takes at most `n_max` steps
    however long the text is.

    The probability of a copied token is the share of right tokens among those copied at its match length. It
    starts from n / (n + 1) for a length of n, with the weight of four observations. Each right token makes
    the match one token longer, so the length grows along a chain.
    """

    wants_top = 0

    def __init__(self, settings: LookupSettings, prompt: Sequence[int], reference: Sequence[int]) -> None:
        self._settings = settings
        self._text = [*reference, _BARRIER, *prompt] if reference else list(prompt)
        self._reference_end = len(reference)
        self._children: dict[int, int] = {}
        self._ends = [-1]
        self._indexed = 0
        self._match = (0, -1)
        lengths = range(settings.n_max + 1)
        self._right = [_PRIOR_WEIGHT * n / (n + 1) for n in lengths]
        self._tried = [_PRIOR_WEIGHT for _ in lengths]
        self._index()

    def propose(self, budget: int) -> Draft:
        """Return at most `budget` tokens, copied from after the match; an empty draft if there is no match.

        Either all of them come from the reference, and `source` is REFERENCE, or none.
        """
        length, end = self._match
        if length < self._settings.n_min or budget < 1:
            return Draft()
        text = self._text
        source = LookupSource.name
        if end < self._reference_end:
            source = REFERENCE
            tokens = text[end + 1 : min(end + 1 + budget, self._reference_end)]
        else:
            tokens = text[end + 1 : end + 1 + budget]
            while len(tokens) < budget:
                tokens.append(tokens[len(tokens) - (len(text) - end - 1)])
        if not tokens:
            return Draft()
        chances = tuple(self._chance(length + step) for step in range(len(tokens)))
        return Draft(tuple(tokens), chances, source, length)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Count right and wrong tokens by match length, then index the committed tokens."""
        proposed = outcome.proposed
        for step in range(min(outcome.accepted + 1, len(proposed.tokens))):
            matched = min(proposed.order + step, self._settings.n_max)
            self._tried[matched] += 1
            self._right[matched] += step < outcome.accepted
        self._text += committed
        self._index()

    def close(self) -> None:
        """Do nothing: the session holds nothing outside of itself."""

    def _chance(self, length: int) -> float:
        length = min(length, self._settings.n_max)
        return self._right[length] / self._tried[length]

    def _index(self) -> None:
        for end in range(self._indexed, len(self._text)):
            self._match = self._add(end)
        self._indexed = len(self._text)

    def _add(self, end: int) -> tuple[int, int]:
        """Index the token at `end`; return the length of the longest match there, and where it ended."""
        text, children, ends = self._text, self._children, self._ends
        longest, recent = self._settings.n_max, self._settings.choose == "recent"
        node, length, match_end = 0, 0, -1
        while length < longest and length <= end:
            key = node << 32 | text[end - length]
            child = children.get(key)
            if child is None:
                children[key] = len(ends)
                ends.append(end)
                break
            match_end = ends[child]
            if recent:
                ends[child] = end
            length += 1
            if length < longest and match_end >= length:
                # This suffix has recurred, so its earlier occurrence must be found by a longer suffix, too.
                longer = child << 32 | text[match_end - length]
                if longer not in children:
                    children[longer] = len(ends)
                    ends.append(match_end)
            node = child
        return length, match_end
