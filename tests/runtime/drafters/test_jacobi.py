"""Guesses are carried on by position, and what rows found is remembered, the most recent first."""

from markov import Conversation

from anespec.runtime.drafters import Draft, Outcome, TopKLogits
from anespec.runtime.drafters.jacobi import FILLER_CHANCE, POOL_ROWS, JacobiSource
from anespec.runtime.passes import Candidate, RowLogits


def found(token: int) -> RowLogits:
    return RowLogits(top=(Candidate(token, 1.0),))


def test_the_verifier_s_own_tokens_behind_a_miss_are_the_next_guess() -> None:
    """Guessed 10, 11, 12; the verifier says 20 instead of 10, and 21, 22, 23 where those would have stood."""
    session = JacobiSource().open("", (1, 2, 3))
    guess = Draft((10, 11, 12), (0.1,) * 3, "jacobi")
    session.observe((20,), Outcome(guess, 0), TopKLogits([found(20), found(21), found(22), found(23)]))
    draft = session.propose(3)
    assert draft.tokens == (21, 22, 23)
    assert list(draft.probabilities) == sorted(draft.probabilities, reverse=True)


def test_after_a_partly_right_draft_only_what_lies_behind_is_carried_on() -> None:
    session = JacobiSource().open("", (1, 2, 3))
    guess = Draft((10, 11, 12), (0.1,) * 3, "jacobi")
    session.observe((10, 20), Outcome(guess, 1), TopKLogits([found(10), found(20), found(22), found(23)]))
    assert session.propose(2).tokens == (22, 23)


def test_found_successors_are_remembered_for_later_chains() -> None:
    source = JacobiSource()
    session = source.open("", (1, 2, 3))
    guess = Draft((10, 11, 12), (0.1,) * 3, "jacobi")
    session.observe((20,), Outcome(guess, 0), TopKLogits([found(20), found(11), found(12), found(13)]))
    assert source.open("", (9, 10)).propose(3).tokens == (11, 12, 13)
    assert source.open("", (3, 20)).propose(1).probabilities == (FILLER_CHANCE,)


def test_the_most_recent_successor_comes_first_and_that_of_two_tokens_before_that_of_one() -> None:
    source = JacobiSource()
    for before, follows in ((5, 7), (6, 8)):
        source.open("", (before, 1)).observe((follows,), Outcome(), TopKLogits([found(follows)]))
    expected = {5: 7, 6: 8, 9: 8}
    for before, follows in expected.items():
        draft = source.open("", (before, 1)).propose(1)
        assert draft.tokens == (follows,)
        assert draft.order == (1 if before == 9 else 2)


def test_rows_are_filled_with_tokens_of_the_text_where_nothing_is_known() -> None:
    draft = JacobiSource().open("", (4, 5, 6)).propose(5)
    assert len(draft.tokens) == 5
    assert set(draft.tokens) <= {4, 5, 6}
    assert set(draft.probabilities) == {FILLER_CHANCE}


def test_a_row_of_which_nothing_is_known_ends_the_window() -> None:
    session = JacobiSource().open("", (1, 2, 3))
    guess = Draft((10, 11, 12), (0.1,) * 3, "jacobi")
    session.observe((20,), Outcome(guess, 0), TopKLogits([found(20), found(21), RowLogits(), found(23)]))
    draft = session.propose(2)
    assert draft.tokens[0] == 21
    assert draft.probabilities[1] == FILLER_CHANCE


def test_forced_tokens_that_ran_without_a_draft_are_rows_as_well() -> None:
    source = JacobiSource()
    source.open("", (1, 2)).observe((5, 6, 7), Outcome(), TopKLogits([found(5), found(6), found(7)]))
    assert source.open("", (2, 5)).propose(2).tokens == (6, 7)


def test_it_iterates_to_the_right_text() -> None:
    """From nothing but tokens of the prompt, guesses become right; later requests profit."""
    source = JacobiSource()
    talks = [Conversation.begun(source, "", (0, start)) for start in range(30)]
    for talk in talks:
        for _ in range(30):
            talk.step()
    accepted = [talk.accepted for talk in talks]
    assert sum(accepted) > 0
    assert sum(accepted[-10:]) > sum(accepted[:10])


def test_memory_is_bounded_by_owners() -> None:
    source = JacobiSource(most_tenants=2)
    for tenant in range(5):
        Conversation.begun(source, str(tenant), (1, 2)).step()
    assert len(source._tenants) == 2
    assert source._tenants.of("4").pool.shape[1] == POOL_ROWS
    source.close()
    assert len(source._tenants) == 0


def test_an_empty_text_gets_no_draft() -> None:
    assert JacobiSource().open("", ()).propose(3) == Draft()
