"""Tables of nodes hold what followed which context, as an exact count does, and never leave their room."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.drafters.mix.layout import BUCKET, NODE_BYTES, NODE_WORDS, Octets, Words
from anespec.runtime.drafters.mix.nodes import (
    COUNTS,
    FIRST_FOLLOWER,
    FOLLOWERS,
    MAX_VISITS,
    VISITS,
    count_follower,
    find_node,
)

GUARD = 4 * NODE_BYTES
FILL = 0xAB

keys = st.integers(0, (1 << 31) - 1).map(lambda half: 2 * half + 1)


def table(rows: int) -> tuple[Octets, Octets, Words]:
    """A whole with guards around it, and both views of a table in it."""
    whole = np.full(2 * GUARD + rows * NODE_BYTES, FILL, np.uint8)
    octets = whole[GUARD:-GUARD].reshape(rows, NODE_BYTES)
    octets[:] = 0
    return whole, octets, octets.view(np.int32).reshape(rows, NODE_WORDS)


def followers(octets: Octets, nodes: Words, key: int) -> dict[int, int]:
    row = find_node(nodes, key)
    if row < 0:
        return {}
    counts = octets[row, COUNTS : COUNTS + FOLLOWERS].tolist()
    tokens = nodes[row, FIRST_FOLLOWER : FIRST_FOLLOWER + FOLLOWERS].tolist()
    assert counts == sorted(counts, reverse=True)
    return {token: count for token, count in zip(tokens, counts, strict=True) if count}


@pytest.mark.slow
@given(st.lists(st.tuples(keys, st.integers(0, 200_000)), max_size=300), st.integers(1, 5))
def test_nothing_outside_is_touched_and_room_is_kept(seen: list[tuple[int, int]], buckets: int) -> None:
    whole, octets, nodes = table(buckets * BUCKET)
    taken = sum(count_follower(nodes, octets, key, token) for key, token in seen)
    assert (whole[:GUARD] == FILL).all() and (whole[-GUARD:] == FILL).all()
    assert taken == np.count_nonzero(nodes[:, 0]) <= buckets * BUCKET
    assert all(find_node(nodes, key) < len(nodes) for key, _ in seen)
    if seen:
        # What came last is always there.
        assert seen[-1][1] in followers(octets, nodes, seen[-1][0])


@given(st.lists(st.tuples(st.sampled_from([3, 5, 7 << 20 | 1]), st.integers(0, 4)), max_size=MAX_VISITS - 1))
def test_where_there_is_room_counts_are_exact(seen: list[tuple[int, int]]) -> None:
    _, octets, nodes = table(64)
    for key, token in seen:
        count_follower(nodes, octets, key, token)
    for key in {key for key, _ in seen}:
        assert followers(octets, nodes, key) == Counter(token for other, token in seen if other == key)
        assert octets[find_node(nodes, key), VISITS] == sum(other == key for other, _ in seen)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=600))
def test_counts_never_exceed_visits(tokens: list[int]) -> None:
    _, octets, nodes = table(BUCKET)
    for token in tokens:
        count_follower(nodes, octets, 9, token)
        counts = followers(octets, nodes, 9)
        assert 0 < octets[find_node(nodes, 9), VISITS] < MAX_VISITS
        assert max(counts.values()) <= octets[find_node(nodes, 9), VISITS]
        assert token in counts


def test_of_equal_counts_the_newest_stands_first() -> None:
    _, octets, nodes = table(BUCKET)
    for token in (1, 2, 3, 2, 3):
        count_follower(nodes, octets, 9, token)
    assert [*followers(octets, nodes, 9)] == [3, 2, 1]


def test_the_least_visited_makes_room() -> None:
    _, octets, nodes = table(BUCKET)
    for key in (1, 3, 5, 7):
        for _ in range(1 if key == 5 else 10):
            count_follower(nodes, octets, key, 0)
    count_follower(nodes, octets, 9, 0)
    assert [find_node(nodes, key) >= 0 for key in (1, 3, 5, 7, 9)] == [True, True, False, True, True]
