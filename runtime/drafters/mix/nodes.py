"""Count the followers of contexts in nodes. There are two tables of nodes: a text's and the memory's;
compiled.

A node is 32 bytes: its key and five followers (4 bytes each), their five counts, the number of visits, its
worth, and an unused byte. Followers are sorted by count, ties newest first; a new follower replaces the last
one. When visits reach MAX_VISITS, all counts are halved, so that they follow changes. A key has BUCKET
places. If all are taken, the node of the least worth is replaced, and the others lose worth.
"""

import numpy as np

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.layout import BUCKET, NODE_WORDS, Octets, Words

# The words table of a text stores for each token its last place, its count, and its latest followers.

WORD, LAST_AT, TIMES, FOLLOWED_LAST, FOLLOWED_BEFORE = 0, 1, 2, 3, 4
WORD_COLUMNS = 8
"""The columns of a row: the token + 1, 0 for an empty row; the length of the text up to its last occurrence;
its count; and the two latest tokens that followed it, + 1. The other columns are unused."""


@compiled_lean("int64(int32[:,::1], int64)")
def find_word(words: Words, token: int) -> int:
    """Return the row of a token, or the empty row for it. At least half of the rows are empty."""
    row = token * 0x9E3779B1 >> 7 & len(words) - 1
    while words[row, WORD] != token + 1 and words[row, WORD] != 0:
        row = row + 1 & len(words) - 1
    return row


@compiled_lean("void(int32[:,::1], int64, int64, int64)")
def note_word(words: Words, before: int, token: int, at: int) -> None:
    """Record that `token` came after the token `before` (-1 for none), and that the text has `at` tokens."""
    row = find_word(words, token)
    words[row, WORD] = token + 1
    words[row, LAST_AT] = at
    words[row, TIMES] += 1
    if before >= 0:
        row = find_word(words, before)
        words[row, WORD] = before + 1
        words[row, FOLLOWED_BEFORE] = words[row, FOLLOWED_LAST]
        words[row, FOLLOWED_LAST] = token + 1


def word_rows(tokens: int) -> int:
    """Return the rows of a words table for so many tokens: a power of two, at least twice the tokens."""
    return 1 << max(6, int(2 * tokens - 1).bit_length())


FOLLOWERS = 5
FIRST_FOLLOWER = 1
COUNTS = 24
VISITS = 29
WORTH = 30
MAX_VISITS = 60
MAX_WORTH = 255


@compiled_lean("int64(int32[:,::1], int64)")
def find_node(nodes: Words, key: int) -> int:
    """Return the row of a key's node; -1 if there is none. Keys are odd numbers of 32 bits."""
    first = (key * (len(nodes) // BUCKET) >> 32) * BUCKET
    stored = key - (1 << 32) if key >> 31 else key
    for row in range(first, first + BUCKET):
        if nodes[row, 0] == stored:
            return row
        if nodes[row, 0] == 0:
            return -1
    return -1


@compiled_lean("int64(int32[:,::1], uint8[:,::1], int64)")
def take_node(nodes: Words, octets: Octets, key: int) -> int:
    """Return the row of a key's node, after adding one if needed; -1 - row if it took an empty place."""
    first = (key * (len(nodes) // BUCKET) >> 32) * BUCKET
    stored = key - (1 << 32) if key >> 31 else key
    worst = first
    for row in range(first, first + BUCKET):
        if nodes[row, 0] == stored:
            return row
        if nodes[row, 0] == 0:
            nodes[row, 0] = stored
            return -1 - row
        if octets[row, WORTH] < octets[worst, WORTH]:
            worst = row
    for row in range(first, first + BUCKET):
        if octets[row, WORTH] > 0:
            octets[row, WORTH] -= 1
    for word in range(NODE_WORDS):
        nodes[worst, word] = 0
    nodes[worst, 0] = stored
    return worst


@compiled_lean("int64(int32[:,::1], uint8[:,::1], int64, int64)")
def count_follower(nodes: Words, octets: Octets, key: int, token: int) -> int:
    """Count that `token` followed a key's context; return 1 if this took an empty node, else 0."""
    row = take_node(nodes, octets, key)
    taken = 0
    if row < 0:
        row = -1 - row
        taken = 1
    if octets[row, WORTH] < MAX_WORTH:
        octets[row, WORTH] += 1
    place = 0
    while place < FOLLOWERS - 1 and octets[row, COUNTS + place] > 0:
        if nodes[row, FIRST_FOLLOWER + place] == token:
            break
        place += 1
    count = np.int64(1)
    if octets[row, COUNTS + place] > 0 and nodes[row, FIRST_FOLLOWER + place] == token:
        count = np.int64(octets[row, COUNTS + place]) + 1
    while place > 0 and octets[row, COUNTS + place - 1] <= count:
        octets[row, COUNTS + place] = octets[row, COUNTS + place - 1]
        nodes[row, FIRST_FOLLOWER + place] = nodes[row, FIRST_FOLLOWER + place - 1]
        place -= 1
    octets[row, COUNTS + place] = count
    nodes[row, FIRST_FOLLOWER + place] = token
    octets[row, VISITS] += 1
    if octets[row, VISITS] >= MAX_VISITS:
        octets[row, VISITS] //= 2
        for place in range(FOLLOWERS):
            octets[row, COUNTS + place] = (octets[row, COUNTS + place] + 1) // 2
    return taken
