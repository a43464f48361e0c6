"""SuffixDecoding as auto's peer: counts are those of a plain count, memory is bounded, owners stand apart."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.drafters import Draft, Outcome, TopKLogits
from anespec.runtime.drafters.candidates import MAX_CANDIDATES
from anespec.runtime.drafters.texts import GrowingText

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from peers import suffix as suffix_drafter
from peers.suffix import Remembered, SuffixGuesser, SuffixSource
from peers.suffix_tries import (
    AT_ONCE,
    BEST,
    COUNT,
    FOLLOWED,
    FOLLOWERS,
    LATEST,
    MAX_DEPTH,
    NEWEST,
    OLDER,
    PARENT,
    TOKEN,
    Trie,
    trie_child,
    trie_path,
)

NO_ROWS = TopKLogits(())

texts = st.lists(st.integers(0, 3), max_size=60)


def stretches(trie: Trie) -> dict[tuple[int, ...], int]:
    """Every stretch that has a node, and its node."""
    found: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, trie.used):
        found[node] = (*found[trie.nodes[node, PARENT]], int(trie.nodes[node, TOKEN]))
    return {stretch: node for node, stretch in found.items()}


def counted(text: Sequence[int], stretch: tuple[int, ...]) -> int:
    return sum(tuple(text[at : at + len(stretch)]) == stretch for at in range(len(text) - len(stretch) + 1))


def trie_of(*together: Sequence[int], nodes: int = 1 << 12, step: int = 1000) -> Trie:
    trie = Trie.empty(nodes)
    for text in together:
        array, path = np.array(text, np.int32), np.zeros(MAX_DEPTH, np.int32)
        for begin in range(0, len(text), step):
            trie.add(array, path, begin, min(begin + step, len(text)))
    return trie


@settings(max_examples=examples(150))
@given(texts, st.integers(1, 9))
def test_counts_are_those_of_a_plain_count(text: list[int], step: int) -> None:
    trie = trie_of(text, step=step)
    found = stretches(trie)
    nodes = trie.nodes
    for stretch, node in found.items():
        assert len(stretch) <= MAX_DEPTH
        if stretch and len(stretch) <= AT_ONCE:
            assert nodes[node, COUNT] == counted(text, stretch)
        elif stretch:
            assert 0 < nodes[node, COUNT] <= counted(text, stretch)
        children = [found[longer] for longer in found if longer[:-1] == stretch and longer]
        assert nodes[node, FOLLOWERS] == len(children)
        assert nodes[node, FOLLOWED] == sum(nodes[child, COUNT] for child in children)
        if children:
            assert nodes[nodes[node, BEST], COUNT] == max(nodes[child, COUNT] for child in children)
            assert nodes[node, LATEST] in children
        listed, sibling = [], nodes[node, NEWEST]
        while sibling:
            listed.append(int(sibling))
            sibling = nodes[sibling, OLDER]
        assert listed == sorted(children, reverse=True)
        for child in children:
            assert trie_child(nodes, trie.slots, node, nodes[child, TOKEN]) == child
    for length in range(1, AT_ONCE + 1):
        for at in range(len(text) - length + 1):
            assert tuple(text[at : at + length]) in found


@given(texts, texts)
def test_the_longest_context_that_has_a_node_is_found(text: list[int], then: list[int]) -> None:
    trie = trie_of(text)
    found = stretches(trie)
    path = np.zeros(MAX_DEPTH, np.int32)
    longest = trie_path(trie.nodes, trie.slots, np.array([*then, 0], np.int32), len(then), path)
    for length in range(1, longest + 1):
        assert found[tuple(then[-length:])] == path[length]
    if longest + 1 < min(MAX_DEPTH, len(then) + 1):
        assert tuple(then[-longest - 1 :]) not in found


@given(texts)
def test_a_trie_that_has_grown_is_the_same(text: list[int]) -> None:
    trie = trie_of(text)
    grown = trie.grown()
    assert stretches(grown) == stretches(trie)
    for stretch, node in stretches(trie).items():
        if stretch:
            assert trie_child(grown.nodes, grown.slots, trie.nodes[node, PARENT], stretch[-1]) == node


@given(texts, st.integers(1, 40))
def test_a_full_trie_goes_on_counting_what_it_has(text: list[int], nodes: int) -> None:
    trie = trie_of(text, nodes=nodes)
    assert trie.used <= nodes
    for stretch, node in stretches(trie).items():
        if stretch:
            assert 0 < trie.nodes[node, COUNT] <= counted(text, stretch)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(texts, texts, texts, st.integers(0, 3))
def test_chances_are_shares_of_what_followed(
    own: list[int], earlier: list[int], earliest: list[int], last: int
) -> None:
    remembered = Remembered()
    remembered.old = trie_of(earliest)
    remembered.young = trie_of(earlier)
    text = GrowingText([*own, last])
    guesser = SuffixGuesser(remembered)
    guesser.begin(text)
    tokens, chances = np.zeros(MAX_CANDIDATES, np.int32), np.zeros(MAX_CANDIDATES)
    count, order = guesser.guess(text.tokens, text.length, tokens, chances)
    followed = [
        follows
        for each in ([*own, last], earlier, earliest)
        for before, follows in pairwise(each)
        if before == last
    ]
    assert set(tokens[:count].tolist()) <= set(followed)
    assert bool(count) == bool(followed)
    assert len(set(tokens[:count].tolist())) == count
    assert ((chances[:count] > 0) & (chances[:count] <= 1)).all()
    assert chances[:count].sum() <= 1 + 1e-9
    assert (order > 0) == (count > 0)


def test_the_longer_context_and_the_more_frequent_follower_win_and_the_latest_of_equals() -> None:
    session = SuffixSource().open("", [1, 2, 3, 9, 2, 4, 8, 2, 4, 7, 2, 4, 1, 2])
    assert session.propose(1).tokens == (3,)
    session = SuffixSource().open("", [1, 2, 3, 9, 2, 4, 8, 2, 4, 7, 2, 4, 6, 2])
    assert session.propose(2).tokens == (4, 6)


def test_earlier_requests_are_remembered_when_they_end() -> None:
    source = SuffixSource()
    session = source.open("", [1, 2])
    session.observe([3, 4, 5], Outcome(), NO_ROWS)
    assert source.open("", [2, 3]).propose(2) == Draft()
    session.close()
    draft = source.open("", [2, 3]).propose(2)
    assert (draft.tokens, draft.source, draft.order) == ((4, 5), "suffix", 2)


def test_what_is_remembered_is_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_drafter, "REMEMBERED_NODES", 1 << 13)
    random = np.random.default_rng(5)
    source = SuffixSource()
    prompts = [random.integers(0, 100_000, 500).tolist() for _ in range(20)]
    for prompt in prompts:
        source.open("", prompt).close()
    remembered = source._tenants.of("")
    assert len(remembered.young.nodes) == len(remembered.old.nodes) == 1 << 13
    assert source.open("", prompts[-1][10:14]).propose(3).tokens == tuple(prompts[-1][14:17])
    assert source.open("", prompts[0][10:14]).propose(3) == Draft()


def test_a_long_text_has_the_trie_grow() -> None:
    random = np.random.default_rng(5)
    text = random.integers(0, 100_000, 12_000).tolist()
    session = SuffixSource().open("", [*text, *text[6000:6004]])
    assert session.propose(3).tokens == tuple(text[6004:6007])


def test_a_reference_counts_but_does_not_run_into_the_prompt() -> None:
    source = SuffixSource()
    session = source.open("", [5, 6], reference=[4, 5, 6, 7, 8])
    assert session.propose(2).tokens == (7, 8)
    assert source.open("", [8], reference=[1, 8]).propose(1) == Draft()


def test_an_empty_text_gets_no_draft() -> None:
    assert SuffixSource().open("", []).propose(3) == Draft()


def test_owners_are_bounded() -> None:
    source = SuffixSource(max_tenants=2)
    for owner in range(5):
        source.open(str(owner), [1, 2]).close()
    assert len(source._tenants) == 2
    source.close()
    assert len(source._tenants) == 0
