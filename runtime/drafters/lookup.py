"""Prompt lookup: copy what followed the last time that the text ended like this."""

from collections.abc import Sequence

from anespec.runtime.drafters import Draft, Outcome

LONGEST_MATCH = 16
_PRIOR_WEIGHT = 4.0


class LookupDrafter:
    """Proposes what followed the most recent occurrence of the longest suffix seen before.

    A suffix of 16 tokens down to 1 counts as a match. Where the copy runs past the end of the text
    it goes on with what it copied, which is right for periodic text.

    The index is a trie over reversed text: the path from its root spells a suffix backwards, and
    every node knows where that stretch of text last ended. A node gets children only once its
    stretch has come back, so novel text costs a node or two per token, and adding a token costs at
    most 16 steps however long the text is.

    A token's probability is the share of tokens copied at that match length which were right so
    far, starting from n / (n + 1) with the weight of four observations. Each token that is right
    makes the match one longer, so a chain climbs through the lengths.
    """

    def __init__(self) -> None:
        self._children: dict[int, int] = {}
        self._last_end = [-1]
        self._indexed = 0
        self._match = (0, -1)
        self._right = [_PRIOR_WEIGHT * n / (n + 1) for n in range(LONGEST_MATCH + 1)]
        self._tried = [_PRIOR_WEIGHT] * (LONGEST_MATCH + 1)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        """At most `budget` tokens copied from after the match; empty where no token came before."""
        self._index(context)
        length, end = self._match
        if length == 0 or budget < 1:
            return Draft()
        tokens = list(context[end + 1 : end + 1 + budget])
        while len(tokens) < budget:
            tokens.append(tokens[len(tokens) - (len(context) - end - 1)])
        return Draft(tuple(tokens), tuple(self._chance(length + step) for step in range(len(tokens))))

    def observe(self, context: Sequence[int], outcome: Outcome) -> None:
        """Count hits and misses by match length, then index what was committed."""
        length, _ = self._match
        if length:
            for step in range(min(outcome.accepted + 1, len(outcome.proposed.tokens))):
                matched = min(length + step, LONGEST_MATCH)
                self._tried[matched] += 1
                self._right[matched] += step < outcome.accepted
        self._index(context)

    def _chance(self, length: int) -> float:
        length = min(length, LONGEST_MATCH)
        return self._right[length] / self._tried[length]

    def _index(self, context: Sequence[int]) -> None:
        for end in range(self._indexed, len(context)):
            self._match = self._add(context, end)
        self._indexed = len(context)

    def _add(self, context: Sequence[int], end: int) -> tuple[int, int]:
        """Index the token at `end`; the longest match there: its length, and where it ended before."""
        children, last_end = self._children, self._last_end
        node, length, match_end = 0, 0, -1
        while length < LONGEST_MATCH and length <= end:
            key = node << 32 | context[end - length]
            child = children.get(key)
            if child is None:
                children[key] = len(last_end)
                last_end.append(end)
                break
            match_end = last_end[child]
            last_end[child] = end
            length += 1
            if length < LONGEST_MATCH and match_end >= length:
                # Now that this stretch has come back, the one before it needs its longer form too.
                longer = child << 32 | context[match_end - length]
                if longer not in children:
                    children[longer] = len(last_end)
                    last_end.append(match_end)
            node = child
        return length, match_end
