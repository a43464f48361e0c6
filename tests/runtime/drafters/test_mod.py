"""The table is llama.cpp's ngram-mod: its hash, its chunks, its losses and its resets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.drafters import Draft, Outcome, TopKLogits
from anespec.runtime.drafters.candidates import MAX_CANDIDATES, fresh_rates
from anespec.runtime.drafters.mod import (
    CHUNK,
    LOW_ROUNDS,
    MULTIPLIER,
    ModSettings,
    ModSource,
    mod_candidates,
    mod_index,
)
from anespec.system.errors import RequestError

NO_ROWS = TopKLogits(())


def plain_index(tokens: list[int], entries: int) -> int:
    """common_ngram_mod::idx, in numbers without a size."""
    mixed = 0
    for token in tokens:
        mixed = (mixed * MULTIPLIER + token) % 2**64
    return mixed % entries


@given(st.lists(st.integers(0, 262_143), min_size=1, max_size=30), st.integers(1, 1 << 24))
def test_the_hash_is_that_of_a_linear_congruential_generator(tokens: list[int], entries: int) -> None:
    assert mod_index(np.array(tokens, np.int32), 0, len(tokens), entries) == plain_index(tokens, entries)


def plain_table(text: list[int], n: int, entries: int) -> dict[int, int]:
    """What stands at which entry: the last writer wins."""
    return {plain_index(text[place : place + n], entries): text[place + n] for place in range(len(text) - n)}


@given(
    st.lists(st.integers(0, 5), max_size=120),
    st.integers(1, 5),
    st.sampled_from([1, 7, 1000]),
    st.integers(1, 6),
)
def test_drafts_are_read_from_a_lossy_table(text: list[int], n: int, entries: int, budget: int) -> None:
    draft = ModSource(ModSettings(n, entries)).open("", text).propose(budget)
    table = plain_table(text, n, entries)
    expected: list[int] = []
    while len(text) >= n and len(expected) < budget:
        follows = table.get(plain_index([*text, *expected][-n:], entries))
        if follows is None:
            break
        expected.append(follows)
    assert list(draft.tokens) == expected


def test_text_is_put_in_by_chunks_and_wholly_at_its_end() -> None:
    source = ModSource(ModSettings(n=2))
    session = source.open("", [1, 2, 3])
    for token in range(4, 4 + CHUNK - 4):
        session.observe([token], Outcome(), NO_ROWS)
        assert source.open("", [3, 4]).propose(1) == Draft()
    for token in range(100, 110):
        session.observe([token], Outcome(), NO_ROWS)
    assert source.open("", [3, 4]).propose(2).tokens == (5, 6)
    assert source.open("", [107, 108]).propose(1) == Draft()
    session.close()
    assert source.open("", [107, 108]).propose(1).tokens == (109,)


def test_the_table_is_given_up_after_three_rounds_in_a_row_that_were_mostly_wrong() -> None:
    source = ModSource(ModSettings(n=2))
    session = source.open("", [1, 2, 3, 4, 1, 2])
    draft = session.propose(2)
    assert draft.tokens == (3, 4)
    for accepted in (0, 0, 1, 0, 0):
        session.observe([], Outcome(draft, accepted), NO_ROWS)
        session.observe([], Outcome(), NO_ROWS)
        assert session.propose(2).tokens == draft.tokens
    assert LOW_ROUNDS == 3
    session.observe([], Outcome(draft, 0), NO_ROWS)
    assert session.propose(2) == Draft()
    assert (source.facts.filled, source.facts.emptied) == (0, 1)


def test_a_table_that_has_become_too_full_is_emptied_before_the_next_prompt() -> None:
    source = ModSource(ModSettings(n=1, entries=64))
    source.open("", range(40))
    assert source.facts.filled == 39
    assert source.facts.occupancy == 39 / 64
    assert source.open("", [5, 6, 5]).propose(1).tokens == (6,)
    assert (source.facts.filled, source.facts.emptied) == (2, 1)


def test_chances_are_how_often_it_was_right() -> None:
    source = ModSource(ModSettings(n=1))
    session = source.open("", [1, 2, 1])
    before = session.propose(1).probabilities[0]
    for _ in range(30):
        session.observe([2, 1], Outcome(), NO_ROWS)
    assert session.propose(1).probabilities[0] > max(before, 0.85)
    for token in range(3, 90):
        session.observe([token, 1], Outcome(), NO_ROWS)
    assert session.propose(1).probabilities[0] < 0.6


def test_a_reference_is_put_in_first() -> None:
    assert ModSource(ModSettings(n=2)).open("", [5, 6], reference=[4, 5, 6, 7, 8]).propose(2).tokens == (7, 8)


def test_empty_texts_tables_and_settings() -> None:
    assert ModSource().open("", []).propose(3) == Draft()
    assert ModSource().facts.occupancy == 0
    found, chances = np.zeros(MAX_CANDIDATES, np.int32), np.zeros(MAX_CANDIDATES)
    empty = np.empty(0, np.int32)
    text = np.array([1, 2], np.int32)
    assert mod_candidates(empty, fresh_rates([0.5]), 1, text, 2, found, chances) == 0
    with pytest.raises(RequestError, match="by 0 tokens"):
        ModSettings(n=0)


def test_memory_is_bounded_by_owners() -> None:
    source = ModSource(ModSettings(entries=1000), most_tenants=2)
    for tenant in range(5):
        source.open(str(tenant), [1, 2])
    assert source.facts.entries == 2000
    source.close()
    assert source.facts.entries == 0
