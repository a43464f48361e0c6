"""The incremental index finds what a brute-force search finds, at any pace of growth."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.drafters import Draft, Outcome
from anespec.runtime.drafters.lookup import LONGEST_MATCH, LookupDrafter


def by_search(context: Sequence[int], budget: int) -> list[int]:
    """What follows the most recent earlier occurrence of the longest suffix of at most 16 tokens."""
    for length in range(min(LONGEST_MATCH, len(context) - 1), 0, -1):
        suffix = list(context[-length:])
        for end in range(len(context) - 2, length - 2, -1):
            if list(context[end - length + 1 : end + 1]) == suffix:
                text = list(context)
                for _ in range(budget):
                    text.append(text[end + 1 + len(text) - len(context)])
                return text[len(context) :]
    return []


def texts() -> st.SearchStrategy[list[int]]:
    few = st.lists(st.integers(0, 2), max_size=80)
    many = st.lists(st.integers(0, 200_000), max_size=40)
    blocks = st.lists(st.sampled_from([[1, 2, 3], [1, 2, 4], [5], [3] * 20]), max_size=20)
    return st.one_of(few, many, blocks.map(lambda parts: [token for part in parts for token in part]))


@settings(max_examples=300, deadline=None)
@given(texts(), st.integers(1, 6), st.data())
def test_proposals_are_those_of_a_search(text: list[int], budget: int, data: st.DataObject) -> None:
    drafter = LookupDrafter()
    length = 0
    while length < len(text):
        length = min(len(text), length + data.draw(st.integers(1, 5)))
        draft = drafter.propose(text[:length], budget)
        assert list(draft.tokens) == by_search(text[:length], budget)
        assert all(0 < chance <= 1 for chance in draft.probabilities)


def test_periodic_text_is_continued_past_its_end() -> None:
    assert LookupDrafter().propose([1, 2, 3, 1, 2, 3, 1], 7).tokens == (2, 3, 1, 2, 3, 1, 2)
    assert LookupDrafter().propose([4, 4], 3).tokens == (4, 4, 4)


def test_nothing_is_proposed_where_nothing_fits() -> None:
    assert LookupDrafter().propose([], 3) == Draft()
    assert LookupDrafter().propose([1, 2, 3], 3) == Draft()
    assert LookupDrafter().propose([1, 1], 0) == Draft()


def test_a_longer_match_is_trusted_more_and_experience_counts() -> None:
    drafter = LookupDrafter()
    context = [1, 2, 3, 4, 1, 2, 3, 4]
    draft = drafter.propose(context, 3)
    assert list(draft.probabilities) == sorted(draft.probabilities)
    for _ in range(20):
        drafter.observe(context, Outcome(draft, 0, (9,)))
    assert drafter.propose(context, 3).probabilities[0] < 0.2
    assert drafter.propose(context, 3).probabilities[1:] == draft.probabilities[1:]
    for _ in range(200):
        drafter.observe(context, Outcome(draft, 3, (1, 2, 3, 4)))
    assert drafter.propose(context, 3).probabilities[0] > 0.85


def test_the_index_stays_small_on_novel_text() -> None:
    drafter = LookupDrafter()
    drafter.propose(range(1000), 3)
    assert len(drafter._last_end) == 1001
