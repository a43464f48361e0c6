"""SuffixDecoding: count what followed contexts of all lengths, in this text and in earlier requests.

Oliaro et al., "SuffixDecoding" (arXiv 2411.04975). A token's probability combines its shares in all contexts
that the text ends with, the longest first: a context that was followed n times, by d different tokens, leaves
d / (n + d) to the next shorter one (escape method C of PPM). A chain's probability is the product along its
path.
"""

from collections.abc import Sequence

import numpy as np

from anespec.runtime.drafters import DraftCost, Outcome
from anespec.runtime.drafters.candidates import MAX_CANDIDATES, Chances
from anespec.runtime.drafters.chains import ChainSource
from anespec.runtime.drafters.compiled import compiled
from anespec.runtime.drafters.texts import GrowingText, SeenRows, Tokens
from peers.suffix_tries import (
    BEST,
    COUNT,
    FOLLOWED,
    FOLLOWERS,
    LATEST,
    MAX_DEPTH,
    NEWEST,
    OLDER,
    TOKEN,
    Nodes,
    Slots,
    Trie,
    trie_child,
    trie_path,
)

OWN_WEIGHT = 8.0
"""The weight of the text's own counts, relative to counts of earlier requests."""

LATEST_WEIGHT = 1.0
"""The additional weight of the latest follower."""

NEWEST_CANDIDATES = 3
"""The newest followers of a context that become candidates, in addition to the most frequent one."""

MIN_REST = 0.01
"""Shorter contexts are ignored once less probability than this is left for them."""

AT_A_TIME = 256
"""The tokens that are counted before the free space is checked again."""

FIRST_NODES = 1 << 13
MAX_NODES = 1 << 20
"""The most nodes of one text; each takes 40 bytes."""

REMEMBERED_TOKENS = 4096
"""The tokens at the end of a text that are remembered; no pass runs while they are counted."""

REMEMBERED_NODES = 1 << 18
"""The nodes of each of a tenant's two tries of earlier requests."""

MAX_TENANTS = 8

_TRIE = "int32[:,::1], int32[::1], "


@compiled("int64(int32[:,::1], int64, int64, int32[::1])")
def _collect(nodes: Nodes, node: int, count: int, found: Tokens) -> int:
    """Append a context's best and newest followers that are not found yet; return the new count."""
    child = nodes[node, BEST]
    following = nodes[node, LATEST]
    newer = nodes[node, NEWEST]
    for _ in range(2 + NEWEST_CANDIDATES):
        if child == 0 or count == MAX_CANDIDATES:
            break
        token = nodes[child, TOKEN]
        is_known = False
        for known in range(count):
            is_known = is_known or found[known] == token
        if not is_known:
            found[count] = token
            count += 1
        child, following, newer = following, newer, nodes[newer, OLDER]
    return count


@compiled("int64(int64, int32[::1], float64[::1])")
def _likely(count: int, found: Tokens, chances: Chances) -> int:
    """Remove candidates without a probability, such as those of ignored contexts; return the new count."""
    kept = 0
    for place in range(count):
        if chances[place] > 0:
            found[kept] = found[place]
            chances[kept] = min(chances[place], 1.0)
            kept += 1
    return kept


@compiled(f"UniTuple(int64, 2)({3 * _TRIE}int32[::1], int64, int32[::1], float64[::1])")
def suffix_guess(
    own: Nodes,
    own_slots: Slots,
    young: Nodes,
    young_slots: Slots,
    old: Nodes,
    old_slots: Slots,
    text: Tokens,
    length: int,
    found: Tokens,
    chances: Chances,
) -> tuple[int, int]:
    """Find candidates for what follows `text[:length]`.

    Returns their number, at most MAX_CANDIDATES, and the tokens of the longest context. The tries are that
    of the text itself and two of earlier requests.
    """
    tries = ((own, own_slots, OWN_WEIGHT), (young, young_slots, 1.0), (old, old_slots, 1.0))
    paths = np.empty((3, MAX_DEPTH), np.int32)
    longest = 0
    for which in range(3):
        nodes, slots, _ = tries[which]
        longest = max(longest, trie_path(nodes, slots, text, length, paths[which]))
    count = 0
    for tokens in range(longest, 0, -1):
        for which in range(3):
            if paths[which, tokens]:
                count = _collect(tries[which][0], paths[which, tokens], count, found)
    chances[:count] = 0.0
    order = 0
    left = 1.0
    for tokens in range(longest, 0, -1):
        whole = 0.0
        for which in range(3):
            node = paths[which, tokens]
            nodes, _, weight = tries[which]
            if node and nodes[node, FOLLOWED]:
                whole += weight * (nodes[node, FOLLOWED] + LATEST_WEIGHT) + nodes[node, FOLLOWERS]
        if whole == 0:
            continue
        order = max(order, tokens)
        taken = 0.0
        for which in range(3):
            node = paths[which, tokens]
            nodes, slots, weight = tries[which]
            if node == 0 or nodes[node, FOLLOWED] == 0:
                continue
            taken += weight * (nodes[node, FOLLOWED] + LATEST_WEIGHT)
            for place in range(count):
                child = trie_child(nodes, slots, node, found[place])
                if child:
                    seen = nodes[child, COUNT] + (LATEST_WEIGHT if child == nodes[node, LATEST] else 0.0)
                    chances[place] += left * weight * seen / whole
        left *= 1 - taken / whole
        if left < MIN_REST:
            break
    return _likely(count, found, chances), order


class Remembered:
    """The memory of a tenant's earlier requests. The young trie becomes the old one when it is full."""

    def __init__(self) -> None:
        self.young = Trie.empty(REMEMBERED_NODES)
        self.old = Trie.empty(1)

    def add(self, text: GrowingText) -> None:
        """Remember the end of a text."""
        path = np.zeros(MAX_DEPTH, np.int32)
        for begin in range(max(0, text.length - REMEMBERED_TOKENS), text.length, AT_A_TIME):
            if self.young.room < AT_A_TIME * MAX_DEPTH:
                self.young, self.old = Trie.empty(REMEMBERED_NODES), self.young
                path[:] = 0
            self.young.add(text.tokens, path, begin, min(begin + AT_A_TIME, text.length))


class SuffixGuesser:
    """Guesses for one sequence from its own text and from its tenant's earlier requests."""

    name = "suffix"
    wants_top = 0

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered
        self._own = Trie.empty(FIRST_NODES)
        self._path = np.zeros(MAX_DEPTH, np.int32)

    def begin(self, text: GrowingText) -> None:
        """Count the prompt."""
        self._count(text, 0)

    def refer(self, reference: Sequence[int]) -> None:
        """Count a text in addition to the sequence's own, before the sequence begins."""
        self._count(GrowingText(reference), 0)
        self._path[:] = 0

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Return the followers of the text's end, for all match lengths."""
        own, young, old = self._own, self._remembered.young, self._remembered.old
        return suffix_guess(
            own.nodes,
            own.slots,
            young.nodes,
            young.slots,
            old.nodes,
            old.slots,
            tokens,
            length,
            found,
            chances,
        )

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """Count the new tokens."""
        self._count(text, before)

    def end(self, text: GrowingText) -> None:
        """Remember the text."""
        self._remembered.add(text)

    def _count(self, text: GrowingText, begin: int) -> None:
        for first in range(begin, text.length, AT_A_TIME):
            if self._own.room < AT_A_TIME * MAX_DEPTH and len(self._own.nodes) < MAX_NODES:
                self._own = self._own.grown()
            self._own.add(text.tokens, self._path, first, min(first + AT_A_TIME, text.length))


class SuffixSource(ChainSource[Remembered]):
    """A source whose sessions of one tenant share their memory."""

    name = "suffix"
    cost = DraftCost(microseconds=50)

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        super().__init__(Remembered, max_tenants)

    def guesser(self, learnt: Remembered, reference: Sequence[int] | None) -> SuffixGuesser:
        """Return a guesser; a reference counts as part of the session's own text, before the prompt."""
        guesser = SuffixGuesser(learnt)
        if reference:
            guesser.refer(reference)
        return guesser
