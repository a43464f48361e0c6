"""Tokens that memory foretold are counted as such: a replay does not say what drafting is worth."""

import pytest

from anespec.runtime.drafters import Draft, Outcome, TopKLogits
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.source import MixSource
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.runtime.engine.statistics import RequestStats

PROMPT, ANSWER = list(range(10, 22)), list(range(40, 72))


def test_a_replayed_request_is_guessed_from_memory_and_a_new_one_is_not() -> None:
    source = MixSource(no_traits(), VocabularyMemory(MixLearner(no_traits()), 1 << 20, "none"))

    def ask() -> list[Draft]:
        session = source.open("me", PROMPT)
        drafts = []
        for token in ANSWER:
            drafts.append(session.propose(3))
            session.observe([token], Outcome(), TopKLogits([]))
        session.close()
        return [draft for draft in drafts if draft.tokens]

    assert not any(draft.remembered for draft in ask())
    replayed = ask()
    assert len(replayed) > len(ANSWER) // 2
    assert sum(draft.remembered for draft in replayed) > len(replayed) // 2
    source.close()


def test_a_draft_that_is_cut_still_says_where_it_came_from() -> None:
    draft = Draft((1, 2, 3), (0.5, 0.5, 0.5), "mix", 2, remembered=True)
    assert draft.first(2) == Draft((1, 2), (0.5, 0.5), "mix", 2, remembered=True)


@pytest.mark.parametrize(
    ("remembered", "said"), [(0, "3.00 a pass"), (4, "3.00 a pass"), (5, "3.00 a pass from memory")]
)
def test_most_of_the_right_drafts_decide(remembered: int, said: str) -> None:
    cost = RequestStats(
        prompt_tokens=1, decode_passes=4, decoded_tokens=12, accepted_by_position=(4, 4),
        remembered_tokens=remembered,
    )  # fmt: skip
    assert cost.per_pass_text("a pass") == said


@pytest.mark.parametrize(
    ("decoded", "passes", "said"),
    [
        (56, 5, "56 tokens from 5 after the prompt's, 11.20 each"),
        (1, 1, "1 token from 1 after the prompt's, 1.00 each"),
        (0, 0, "all from the prompt's"),
    ],
)
def test_the_rate_of_decode_passes_stands_beside_its_counts(decoded: int, passes: int, said: str) -> None:
    cost = RequestStats(prompt_tokens=1, prompt_passes=1, decoded_tokens=decoded, decode_passes=passes)
    assert cost.decode_text() == said
