"""Prompt lookup: copy the tokens that followed the latest match of the text's end, in the text or in a
reference."""

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
"""Stands between reference and prompt; no token, and it never comes back."""


@dataclass(frozen=True)
class LookupSettings:
    """The choice of the earlier stretch of text to copy from.

    The longest suffix of `n_max` down to `n_min` tokens that was seen before counts; of its occurrences the
    most recent or the leftmost. Hugging Face's prompt lookup is (n_max=2, choose="leftmost"), llama.cpp's
    ngram-simple is n_min = n_max. Raises RequestError for limits that make no sense.
    """

    n_max: int = 16
    n_min: int = 1
    choose: Literal["recent", "leftmost"] = "recent"

    def __post_init__(self) -> None:
        if not 1 <= self.n_min <= self.n_max <= LONGEST_MATCH:
            raise RequestError(
                f"lookup matches of {self.n_min} to {self.n_max} tokens make no sense; "
                f"they must lie between 1 and {LONGEST_MATCH}, the least first"
            )
        if self.choose not in ("recent", "leftmost"):
            raise RequestError(f"lookup chooses {self.choose!r}; it can choose recent or leftmost")


class LookupSource:
    """Sessions that copy from their own text and reference; nothing is shared between them."""

    name = "lookup"
    cost = DraftCost(microseconds=20, opens_aside=True)

    def __init__(self, settings: LookupSettings | None = None) -> None:
        self._settings = settings or LookupSettings()

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> "LookupSession":
        """A session whose index holds reference and prompt."""
        return LookupSession(self._settings, prompt, reference or ())

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Nothing is held beside the sessions."""


class LookupSession:
    """Proposes what followed the chosen occurrence of the longest suffix seen before.

    Where the copy runs past the end of the text it goes on with what it copied, which is right for
    periodic text.

    The index is a trie over reversed text: the path from its root spells a suffix backwards, and
    every node knows where that stretch of text ended (last, or first). A node gets children only once its
    stretch has come back, so novel text costs a node or two per token, and adding a token costs at
    most `n_max` steps however long the text is.

    A token's probability is the share of tokens copied at that match length which were right so
    far, starting from n / (n + 1) with the weight of four observations. Each token that is right
    makes the match one longer, so a chain climbs through the lengths.
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
        """Return at most `budget` tokens, copied from after the match; empty if no token matches.

        Either all of them come from the reference, and are marked so, or none.
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
        """Count hits and misses by match length, then index what was committed."""
        proposed = outcome.proposed
        for step in range(min(outcome.accepted + 1, len(proposed.tokens))):
            matched = min(proposed.order + step, self._settings.n_max)
            self._tried[matched] += 1
            self._right[matched] += step < outcome.accepted
        self._text += committed
        self._index()

    def close(self) -> None:
        """Nothing outlives the session."""

    def _chance(self, length: int) -> float:
        length = min(length, self._settings.n_max)
        return self._right[length] / self._tried[length]

    def _index(self) -> None:
        for end in range(self._indexed, len(self._text)):
            self._match = self._add(end)
        self._indexed = len(self._text)

    def _add(self, end: int) -> tuple[int, int]:
        """Index the token at `end`; the longest match there: its length, and where that stretch ended."""
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
                # Now that this stretch has come back, the one before it needs its longer form too.
                longer = child << 32 | text[match_end - length]
                if longer not in children:
                    children[longer] = len(ends)
                    ends.append(match_end)
            node = child
        return length, match_end
