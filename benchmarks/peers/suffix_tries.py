"""Tries of all short sequences of tokens in texts, with counts, in flat arrays of fixed size; compiled.

A node is a sequence of tokens; its children are the tokens that followed it. Short sequences get nodes at
once, longer ones only after the sequence that is one token shorter has occurred again: so new text costs a
few nodes per token.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.compiled import compiled
from anespec.runtime.drafters.texts import Tokens

MAX_DEPTH = 12
"""The tokens of the longest sequence, including the one that follows."""

AT_ONCE = 4
"""The tokens of the longest sequence that gets a node when it is seen first."""

TOKEN, PARENT, COUNT, FOLLOWED, FOLLOWERS, BEST, LATEST, NEWEST, OLDER, COLUMNS = range(10)
"""The columns of a node: its last token, its parent, how often it was seen, how often anything followed,
how many different tokens followed, its most frequent child, the latest child, its newest child and its
next older sibling."""

Nodes = NDArray[np.int32]
"""[nodes, COLUMNS]; node 0 is the root, or means no child or sibling."""

Slots = NDArray[np.int32]
"""[a power of two, more than twice the nodes]: a hash table of nodes by parent and token; 0 is free."""

Path = NDArray[np.int32]
"""[MAX_DEPTH]: the nodes of the last 0, 1, 2… tokens of a text; 0 if there is none, or for the root."""


@compiled("int64(int64, int64, int64)")
def _slot(parent: int, token: int, slots: int) -> int:
    mixed = np.uint64(parent) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(token) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    return int(np.int64(mixed >> np.uint64(32)) & (slots - 1))


@compiled("int64(int32[:,::1], int32[::1], int64, int64)")
def trie_child(nodes: Nodes, slots: Slots, parent: int, token: int) -> int:
    """Return the child of a node for a token; 0 if there is none."""
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

    Returns the number of used nodes. When no nodes are left, sequences that need new ones are not counted.
    """
    following = np.zeros(MAX_DEPTH, np.int32)
    for place in range(begin, end):
        token = text[place]
        following[:] = 0
        for length in range(min(place + 1, MAX_DEPTH)):
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
            if length + 1 < MAX_DEPTH:
                following[length + 1] = child
        path[:] = following
    return used


@compiled("int64(int32[:,::1], int32[::1], int32[::1], int64, int32[::1])")
def trie_path(nodes: Nodes, slots: Slots, text: Tokens, length: int, path: Path) -> int:
    """Find the nodes of the last tokens of `text[:length]`; return the number of tokens of the longest."""
    path[:] = 0
    for tokens in range(1, min(MAX_DEPTH, length + 1)):
        node = 0
        for place in range(length - tokens, length):
            node = trie_child(nodes, slots, node, text[place])
            if node == 0:
                return tokens - 1
        path[tokens] = node
    return min(MAX_DEPTH, length + 1) - 1


@dataclass
class Trie:
    """A trie and the number of its used nodes."""

    nodes: Nodes
    slots: Slots
    used: int = 1

    @classmethod
    def empty(cls, size: int) -> "Trie":
        """Return a trie of at most `size` nodes. Pages that were never written take no memory."""
        return cls(np.zeros((size, COLUMNS), np.int32), np.zeros(1 << (2 * size).bit_length(), np.int32))

    @property
    def room(self) -> int:
        """Return how many more nodes fit."""
        return len(self.nodes) - self.used

    def add(self, text: Tokens, path: Path, begin: int, end: int) -> None:
        """Count a part of a text; see `trie_add`."""
        self.used = trie_add(self.nodes, self.slots, path, self.used, text, begin, end)

    def grown(self) -> "Trie":
        """Return the same trie with space for twice as many nodes."""
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
