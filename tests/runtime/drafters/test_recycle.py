"""What the verifier held likely comes back when its context does, the latest first, in bounded memory."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markov import VOCABULARY, Conversation, likeliest

from anespec.runtime.drafters import Draft, Outcome, TopKLogits
from anespec.runtime.drafters.candidates import MAX_CANDIDATES
from anespec.runtime.drafters.recycle import SUCCESSORS, Recycled, RecycleSource, recycle_guess
from anespec.runtime.drafters.texts import seen_rows
from anespec.runtime.passes import Candidate, RowLogits


def found(*tokens: int) -> RowLogits:
    return RowLogits(top=tuple(Candidate(token, 3.0 - place) for place, token in enumerate(tokens)))


def seen_once(*rows: RowLogits, committed: tuple[int, ...], guessed: tuple[int, ...] = ()) -> RecycleSource:
    """A source that has seen one pass behind the text 1, 2."""
    source = RecycleSource(VOCABULARY)
    outcome = Outcome(Draft(guessed, (0.5,) * len(guessed), "recycle"), len(committed) - 1)
    source.open("", (1, 2)).observe(committed, outcome, TopKLogits(rows))
    return source


def test_a_prompt_alone_says_nothing() -> None:
    assert RecycleSource(VOCABULARY).open("", (1, 2, 1, 2, 1)).propose(3) == Draft()


def test_the_successor_that_the_verifier_held_likeliest_is_guessed() -> None:
    source = seen_once(found(7, 8), committed=(7,))
    assert source.open("", (9, 2)).propose(3).tokens == (7,)


def test_rows_behind_a_wrong_guess_count() -> None:
    """3 was guessed, 7 was right; yet now 4 is known to follow 3, and nothing to follow 7."""
    source = seen_once(found(7), found(4, 5), committed=(7,), guessed=(3,))
    assert source.open("", (9, 3)).propose(1).tokens == (4,)
    assert source.open("", (9, 7)).propose(1) == Draft()


def test_a_row_behind_a_wrong_guess_replaces_none_that_was_right() -> None:
    source = seen_once(found(7), found(4), found(5), committed=(7,), guessed=(2, 2))
    assert source.open("", (9, 2)).propose(1).tokens == (7,)


def test_two_tokens_say_more_than_one() -> None:
    source = seen_once(found(7), committed=(7,))
    source.open("", (3, 2)).observe((6,), Outcome(), TopKLogits([found(6)]))
    for prompt, follows in (((1, 2), 7), ((3, 2), 6), ((4, 2), 6)):
        draft = source.open("", prompt).propose(1)
        assert draft.tokens == (follows,)
        assert draft.order == (1 if prompt[0] == 4 else 2)


def test_rows_of_which_nothing_is_known_teach_nothing() -> None:
    nan = RowLogits(top=(Candidate(3, float("nan")), Candidate(4, 1.0)))
    source = seen_once(RowLogits(), nan, committed=(7,), guessed=(2,))
    assert source.open("", (1, 2)).propose(3) == Draft()


def test_chances_are_what_came_true() -> None:
    source = RecycleSource(VOCABULARY)
    session = source.open("", (2,))
    for _ in range(60):
        session.observe((7, 2), Outcome(), TopKLogits([found(9, 7)]))
    draft = source.open("", (7, 2)).propose(1)
    assert draft.tokens == (7,)
    assert draft.probabilities[0] > 0.8


def test_it_learns_a_model_of_two_tokens_from_what_it_holds_likely() -> None:
    source = RecycleSource(VOCABULARY)
    for start in range(VOCABULARY):
        talk = Conversation.begun(source, "", (0, start))
        for _ in range(30):
            talk.step()
    later = Conversation.begun(source, "", (0, 5))
    for _ in range(20):
        later.step()
    assert later.accepted > 45


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=30), st.integers(0, 40))
def test_candidates_are_different_tokens_with_chances_likeliest_rows_first(
    prompt: list[int], passes: int
) -> None:
    source = RecycleSource(VOCABULARY)
    talk = Conversation.begun(source, "", prompt)
    for _ in range(passes):
        talk.step()
    learnt = source._tenants.of("")
    assert isinstance(learnt, Recycled)
    text = np.array(talk.text, np.int32)
    tokens, chances = np.zeros(MAX_CANDIDATES, np.int32), np.zeros(MAX_CANDIDATES)
    for length in range(len(text) + 1):
        count, _ = recycle_guess(learnt.table, learnt.pairs, learnt.rates, text, length, tokens, chances)
        candidates = tokens[:count].tolist()
        assert len(set(candidates)) == count <= MAX_CANDIDATES
        assert ((chances[:count] > 0) & (chances[:count] <= 1)).all()
        if count and length > 1 and not passes:
            assert candidates[0] in likeliest(text[:length].tolist())


def test_memory_is_bounded_by_vocabulary_and_owners() -> None:
    source = RecycleSource(VOCABULARY, most_tenants=3)
    for tenant in range(10):
        talk = Conversation.begun(source, str(tenant), (1, 2))
        for _ in range(5):
            talk.step()
    assert len(source._tenants) == 3
    assert source._tenants.of("9").table.shape == (VOCABULARY, SUCCESSORS)
    source.close()
    assert len(source._tenants) == 0


@pytest.mark.parametrize("prompt", [(), (VOCABULARY + 3,), (1, VOCABULARY + 3)])
def test_tokens_beyond_the_vocabulary_and_empty_texts_do_no_harm(prompt: tuple[int, ...]) -> None:
    session = RecycleSource(VOCABULARY).open("", prompt)
    assert session.propose(2) == Draft()
    session.observe((VOCABULARY + 5,), Outcome(), TopKLogits([found(3)]))
    assert session.propose(2) == Draft()


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.lists(st.integers(0, 9), max_size=4),
    st.lists(st.lists(st.floats(-20, 20), max_size=4), min_size=1, max_size=6),
)
def test_rows_are_seen_as_they_ran(
    committed: list[int], guessed: list[int], logits: list[list[float]]
) -> None:
    """Their tokens are the last one, the draft's, or else what was forced; shares are those of the top."""
    count = min(len(logits), 1 + max(len(guessed), len(committed)))
    rows = [
        RowLogits(top=tuple(Candidate(token, logit) for token, logit in enumerate(row)))
        for row in logits[:count]
    ]
    outcome = Outcome(Draft(tuple(guessed), (0.5,) * len(guessed)), 0)
    seen = seen_rows(7, committed, outcome, TopKLogits(rows), 3)
    ran = [*guessed, *committed[len(guessed) :]]
    assert seen.inputs.tolist() == [7, *ran][:count]
    for place, row in enumerate(rows):
        top = [candidate.logit for candidate in row.top[:3]]
        assert seen.tops[place].tolist() == [*range(len(top)), *([-1] * (3 - len(top)))]
        expected = [math.exp(logit) / sum(map(math.exp, top)) for logit in top]
        assert seen.shares[place].tolist() == pytest.approx([*expected, *([0.0] * (3 - len(top)))])
