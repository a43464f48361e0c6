"""The incremental index finds what a search finds, at any pace of growth and with any settings."""

from collections.abc import Sequence

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.drafters import Draft, DraftSession, Outcome, TopKLogits
from anespec.runtime.drafters.lookup import LookupSession, LookupSettings, LookupSource
from anespec.system.errors import RequestError


def opened(
    prompt: Sequence[int], settings: LookupSettings | None = None, reference: Sequence[int] = ()
) -> LookupSession:
    return LookupSource(settings).open("", prompt, reference)


def grow(session: DraftSession, tokens: Sequence[int]) -> None:
    session.observe(tokens, Outcome(), TopKLogits(()))


def by_search(context: Sequence[int], budget: int, limits: LookupSettings) -> list[int]:
    """What follows the chosen earlier occurrence of the longest suffix, going on with itself at the end."""
    for length in range(min(limits.n_max, len(context) - 1), limits.n_min - 1, -1):
        suffix = list(context[-length:])
        ends = [e for e in range(length - 1, len(context) - 1) if context[e - length + 1 : e + 1] == suffix]
        if ends:
            end = ends[-1] if limits.choose == "recent" else ends[0]
            text = list(context)
            for _ in range(budget):
                text.append(text[end + 1 + len(text) - len(context)])
            return text[len(context) :]
    return []


def hugging_face(input_ids: Sequence[int], most_tokens: int, most_ngram: int = 2) -> list[int]:
    """As transformers' PromptLookupCandidateGenerator does it: the leftmost window that matches."""
    for size in range(min(most_ngram, len(input_ids) - 1), 0, -1):
        for start in range(len(input_ids) - size + 1):
            if input_ids[start : start + size] == input_ids[-size:]:
                found = input_ids[start + size : start + size + most_tokens]
                if found:
                    return list(found)
    return []


def ngram_simple(tokens: Sequence[int], ngram: int, most_tokens: int) -> list[int]:
    """llama.cpp's ngram-simple: the last earlier occurrence of just `ngram` tokens, searched backwards."""
    for start in range(len(tokens) - ngram - 1, -1, -1):
        if tokens[start : start + ngram] == tokens[-ngram:]:
            return list(tokens[start + ngram : start + ngram + most_tokens])
    return []


def texts() -> st.SearchStrategy[list[int]]:
    few = st.lists(st.integers(0, 2), max_size=80)
    many = st.lists(st.integers(0, 200_000), max_size=40)
    blocks = st.lists(st.sampled_from([[1, 2, 3], [1, 2, 4], [5], [3] * 20]), max_size=20)
    return st.one_of(few, many, blocks.map(lambda parts: [token for part in parts for token in part]))


limits = st.builds(
    lambda a, b, choose: LookupSettings(max(a, b), min(a, b), choose),
    st.integers(1, 17),
    st.integers(1, 17),
    st.sampled_from(["recent", "leftmost"]),
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(texts(), st.integers(1, 6), st.one_of(st.just(LookupSettings()), limits), st.data())
def test_proposals_are_those_of_a_search(
    text: list[int], budget: int, limits: LookupSettings, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(text)))
    session = opened(text[:length], limits)
    while True:
        draft = session.propose(budget)
        assert list(draft.tokens) == by_search(text[:length], budget, limits)
        assert all(0 < chance <= 1 for chance in draft.probabilities)
        if length == len(text):
            return
        before, length = length, min(len(text), length + data.draw(st.integers(1, 5)))
        grow(session, text[before:length])


@settings(max_examples=examples(200), deadline=None)
@given(texts(), st.integers(1, 10))
def test_hugging_face_s_prompt_lookup_is_a_setting(text: list[int], budget: int) -> None:
    """Theirs ends where the text does; ours goes on with what it copied."""
    theirs = hugging_face(text, budget)
    ours = opened(text, LookupSettings(n_max=2, choose="leftmost")).propose(budget)
    assert list(ours.tokens[: len(theirs)]) == theirs
    assert bool(theirs) == bool(ours.tokens)


@settings(max_examples=examples(200), deadline=None)
@given(texts(), st.integers(1, 10), st.integers(1, 5))
def test_llama_cpp_s_ngram_simple_is_a_setting(text: list[int], budget: int, ngram: int) -> None:
    theirs = ngram_simple(text, ngram, budget)
    ours = opened(text, LookupSettings(n_max=ngram, n_min=ngram)).propose(budget)
    assert list(ours.tokens[: len(theirs)]) == theirs
    assert bool(theirs) == bool(ours.tokens)


@settings(max_examples=examples(100), deadline=None)
@given(texts(), texts(), st.integers(1, 6), limits)
def test_a_reference_is_text_before_the_prompt_that_nothing_runs_out_of(
    reference: list[int], text: list[int], budget: int, limits: LookupSettings
) -> None:
    barrier = 2**31
    expected = by_search([*reference, barrier, *text], budget, limits) if reference else []
    draft = opened(text, limits, reference).propose(budget)
    if reference:
        copied = expected[: expected.index(barrier)] if barrier in expected else expected
        assert list(draft.tokens) == copied


def test_periodic_text_is_continued_past_its_end() -> None:
    assert opened([1, 2, 3, 1, 2, 3, 1]).propose(7).tokens == (2, 3, 1, 2, 3, 1, 2)
    assert opened([4, 4]).propose(3).tokens == (4, 4, 4)


def test_nothing_is_proposed_where_nothing_fits() -> None:
    assert opened([]).propose(3) == Draft()
    assert opened([1, 2, 3]).propose(3) == Draft()
    assert opened([1, 1]).propose(0) == Draft()
    assert opened([1, 2, 1], LookupSettings(n_min=2)).propose(3) == Draft()
    assert opened([9], reference=[1, 2, 9]).propose(3) == Draft()


def test_a_draft_says_where_it_comes_from() -> None:
    reference = [1, 3, 4, 9, 5, 6, 7, 8]
    draft = opened([3, 4, 9], reference=reference).propose(2)
    assert (draft.tokens, draft.source, draft.order) == ((5, 6), "reference", 3)
    draft = opened([3, 4, 2, 3, 4], reference=reference).propose(2)
    assert (draft.tokens, draft.source, draft.order) == ((2, 3), "lookup", 2)
    draft = opened([3, 4, 2, 4, 9], reference=reference).propose(9)
    assert (draft.tokens, draft.source) == ((5, 6, 7, 8), "reference")


@settings(max_examples=examples(100), deadline=None)
@given(texts(), texts(), st.integers(1, 6), limits)
def test_just_what_is_copied_from_the_reference_is_said_to_be(
    reference: list[int], text: list[int], budget: int, limits: LookupSettings
) -> None:
    """Numbers that the text does not have stand for the reference's tokens wherever they are copied."""
    session = opened(text, limits, reference)
    marked = opened(text, limits, reference)
    marked._text[: len(reference)] = [10**6 + token for token in reference]
    draft, copied = session.propose(budget), marked.propose(budget)
    if draft.tokens:
        assert {token >= 10**6 for token in copied.tokens} == {draft.source == "reference"}


def test_a_longer_match_is_trusted_more_and_experience_counts() -> None:
    session = opened([1, 2, 3, 4, 1, 2, 3, 4])
    draft = session.propose(3)
    assert list(draft.probabilities) == sorted(draft.probabilities)
    for _ in range(20):
        session.observe((), Outcome(draft, 0), TopKLogits(()))
    assert session.propose(3).probabilities[0] < 0.2
    assert session.propose(3).probabilities[1:] == draft.probabilities[1:]
    for _ in range(200):
        session.observe((), Outcome(draft, 3), TopKLogits(()))
    assert session.propose(3).probabilities[0] > 0.85


def test_the_index_stays_small_on_novel_text() -> None:
    assert len(opened(range(1000))._ends) == 1001


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"n_max": 0}, "1 to 0"),
        ({"n_min": 3, "n_max": 2}, "3 to 2"),
        ({"n_max": 65}, "1 to 65"),
        ({"choose": "best"}, "'best'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(limits: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        LookupSettings(**limits)  # type: ignore[arg-type]
