"""Tries of all short stretches of texts, with counts, in flat arrays of fixed size; compiled.

A node stands for a stretch of tokens, its children for what followed it. Short stretches get nodes at once,
longer ones only once what is one token shorter has come back: so novel text costs a few nodes a token.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.compiled import compiled
from anespec.runtime.drafters.texts import Tokens

DEEPEST = 12
"""Tokens of the longest stretch, the one that follows among them."""

AT_ONCE = 4
"""Tokens of the longest stretch that gets a node when it is seen first."""

TOKEN, PARENT, COUNT, FOLLOWED, FOLLOWERS, BEST, LATEST, NEWEST, OLDER, COLUMNS = range(10)
"""What a node has: its last token, the node of what stands before that, how often it was seen, how often
anything followed, how many different tokens did, its most frequent child, the one seen last, its newest
and its next older sibling."""

Nodes = NDArray[np.int32]
"""[nodes, COLUMNS]; node 0 is the root, and none where a child or sibling is meant."""

Slots = NDArray[np.int32]
"""[a power of two, more than twice the nodes]: a hash table of nodes by parent and token; 0 is free."""

Path = NDArray[np.int32]
"""[DEEPEST]: the nodes of the last 0, 1, 2… tokens of a text; 0 where there is none, or for the root."""


@compiled("int64(int64, int64, int64)")
def _slot(parent: int, token: int, slots: int) -> int:
    mixed = np.uint64(parent) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(token) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return int(np.int64(mixed >> np.uint64(32)) & (slots - 1))


@compiled("int64(int32[:,::1], int32[::1], int64, int64)")
def trie_child(nodes: Nodes, slots: Slots, parent: int, token: int) -> int:
    """The child of a node that a token leads to; 0 for none."""
    slot = _slot(parent, token, len(slots))
    while slots[slot]:
        node = slots[slot]
        if nodes[node, PARENT] == parent and nodes[node, TOKEN] == token:
            return int(node)
        slot = (slot + 1) & (len(slots) - 1)
    return 0


@compiled("int64(int32[:,::1], int32[::1], int32[::1], int64, int32[::1], int64, int64)")
def trie_add(nodes: Nodes, slots: Slots, path: Path, used: int, text: Tokens, begin: int, end: int) -> int:
    """Count `text[begin:end]`; `path` are the nodes of the text before it.

    Return the number of used nodes. If the nodes run out, stretches that need new ones are not counted.
    """
    following = np.zeros(DEEPEST, np.int32)
    for place in range(begin, end):
        token = text[place]
        following[:] = 0
        for length in range(min(place + 1, DEEPEST)):
            # The node of the `length` tokens before this one.
            parent = path[length]
            if length > 0 and parent == 0:
                break
            child = trie_child(nodes, slots, parent, token)
            if child == 0:
                if used == len(nodes) or (length >= AT_ONCE and nodes[parent, COUNT] < 2):
                    break
                child = used
                used += 1
                nodes[child, TOKEN] = token
                nodes[child, PARENT] = parent
                nodes[child, OLDER] = nodes[parent, NEWEST]
                nodes[parent, NEWEST] = child
                nodes[parent, FOLLOWERS] += 1
                slot = _slot(parent, token, len(slots))
                while slots[slot]:
                    slot = (slot + 1) & (len(slots) - 1)
                slots[slot] = child
            nodes[child, COUNT] += 1
            nodes[parent, FOLLOWED] += 1
            nodes[parent, LATEST] = child
            best = nodes[parent, BEST]
            if best == 0 or nodes[child, COUNT] >= nodes[best, COUNT]:
                nodes[parent, BEST] = child
            if length + 1 < DEEPEST:
                following[length + 1] = child
        path[:] = following
    return used


@compiled("int64(int32[:,::1], int32[::1], int32[::1], int64, int32[::1])")
def trie_path(nodes: Nodes, slots: Slots, text: Tokens, length: int, path: Path) -> int:
    """Find the nodes of the last tokens of `text[:length]`; how many tokens the longest has."""
    path[:] = 0
    for tokens in range(1, min(DEEPEST, length + 1)):
        node = 0
        for place in range(length - tokens, length):
            node = trie_child(nodes, slots, node, text[place])
            if node == 0:
                return tokens - 1
        path[tokens] = node
    return min(DEEPEST, length + 1) - 1


@dataclass
class Trie:
    """A trie and how many of its nodes are used."""

    nodes: Nodes
    slots: Slots
    used: int = 1

    @classmethod
    def empty(cls, size: int) -> "Trie":
        """One of at most `size` nodes. Pages never written to take no memory."""
        return cls(np.zeros((size, COLUMNS), np.int32), np.zeros(1 << (2 * size).bit_length(), np.int32))

    @property
    def room(self) -> int:
        """How many more nodes fit."""
        return len(self.nodes) - self.used

    def add(self, text: Tokens, path: Path, begin: int, end: int) -> None:
        """Count a part of a text; see `trie_add`."""
        self.used = trie_add(self.nodes, self.slots, path, self.used, text, begin, end)

    def grown(self) -> "Trie":
        """The same with room for twice as many nodes."""
        grown = Trie.empty(2 * len(self.nodes))
        grown.nodes[: self.used] = self.nodes[: self.used]
        grown.used = self.used
        _place_all(grown.nodes, grown.slots, self.used)
        return grown


@compiled("void(int32[:,::1], int32[::1], int64)")
def _place_all(nodes: Nodes, slots: Slots, used: int) -> None:
    for node in range(1, used):
        slot = _slot(nodes[node, PARENT], nodes[node, TOKEN], len(slots))
        while slots[slot]:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = node
