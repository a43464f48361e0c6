"""Mix learns what comes, within its room and its tenant, and gives the same drafts twice."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.drafters import REFERENCE, Draft, Outcome, TopKLogits
from anespec.runtime.drafters.auto import AutoSource
from anespec.runtime.drafters.memory.learner import ALIGNMENT
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.layout import FIXED_BYTES, Octets, Words, view_image
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.source import MixSession, MixSource
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.system.errors import RequestError

SIZE = 1 << 20
VOCABULARY = 500

texts = st.lists(st.integers(0, VOCABULARY - 1), max_size=80)


def source(kind: type[MixSource] = MixSource) -> MixSource:
    memory = VocabularyMemory(MixLearner(no_traits()), SIZE, "none")
    if kind is AutoSource:
        return AutoSource(no_traits(), memory, VOCABULARY)
    return kind(no_traits(), memory)


def learn(learner: MixLearner, image: Octets, text: Words, answer: int) -> None:
    for _ in learner.fold(image, text, answer):
        pass


def replay(session: MixSession, answer: Sequence[int], budget: int = 3) -> list[Draft]:
    """Run a session along an answer that is known; its drafts."""
    drafts = []
    place = 0
    while place < len(answer):
        draft = session.propose(budget)
        accepted = 0
        rest = answer[place:]
        while accepted < min(len(draft.tokens), len(rest)) and draft.tokens[accepted] == rest[accepted]:
            accepted += 1
        session.observe(rest[: accepted + 1], Outcome(draft, accepted), TopKLogits(()))
        place += accepted + 1
        drafts.append(draft)
    return drafts


@settings(max_examples=examples(60))
@given(texts, texts, texts, st.integers(1, 70))
def test_any_request_gets_drafts_within_its_budget(
    reference: list[int], prompt: list[int], answer: list[int], budget: int
) -> None:
    session = source().open("me", prompt, reference or None)
    for draft in replay(session, answer, budget):
        assert len(draft.tokens) <= budget
        assert all(0 <= token < VOCABULARY for token in draft.tokens)
        assert all(0 < chance <= 1 for chance in draft.probabilities)
    session.close()
    session.close()


def test_a_text_that_outgrows_its_tables_is_known_whole() -> None:
    drawn = np.random.default_rng(3)
    pattern = drawn.integers(0, VOCABULARY, 400).tolist()
    session = source().open("me", pattern[:10])
    replay(session, [*pattern[10:], *drawn.integers(0, VOCABULARY, 900).tolist()])
    assert session.propose(0) == Draft()
    session.observe(pattern[100:104], Outcome(), TopKLogits(()))
    assert session.propose(3).tokens == tuple(pattern[104:107])


def test_what_comes_again_becomes_more_probable() -> None:
    drawn = np.random.default_rng(1)
    pattern = drawn.integers(0, VOCABULARY, 40).tolist()
    session = source().open("me", [])
    drafts = replay(session, pattern * 20)
    chances = [draft.probabilities[0] for draft in drafts if len(draft.tokens) == 3]
    assert np.mean(chances[-20:]) > 0.9 > np.mean(chances[:20])
    assert len(drafts) < len(pattern) * 8


def test_an_earlier_request_is_remembered() -> None:
    drawn = np.random.default_rng(2)
    answer = drawn.integers(0, VOCABULARY, 60).tolist()
    shared = source()
    first = shared.open("me", [1, 2, 3])
    before = len(replay(first, answer))
    first.close()
    again, other = shared.open("me", [1, 2, 3]), shared.open("you", [1, 2, 3])
    assert len(replay(again, answer)) < before / 2
    assert len(replay(other, answer)) == before


def test_sessions_may_be_asked_on_several_threads() -> None:
    """A source that has just started is told what ended before on the thread that opens a long text."""

    def asked(shared: MixSource, tenant: str) -> list[list[Draft]]:
        answer = np.random.default_rng(len(tenant)).integers(0, 40, 600).tolist()
        return [replay(shared.open(tenant, [1, 2, 3]), answer) for _ in range(4)]

    tenants = ["a", "bb"]
    alone = [asked(source(), tenant) for tenant in tenants]
    with ThreadPoolExecutor(len(tenants)) as threads:
        assert [*threads.map(asked, [source()] * 2, tenants)] == alone


def test_what_is_copied_from_a_reference_is_said_to_be() -> None:
    reference = list(range(100, 200))
    session = source().open("me", [1, 2, 3], reference)
    session.observe(reference[10:16], Outcome(), TopKLogits(()))
    draft = session.propose(3)
    assert draft.tokens == tuple(reference[16:19])
    assert (draft.source, draft.order) == (REFERENCE, 6)


@settings(max_examples=30)
@given(texts, st.lists(st.integers(0, 20), max_size=80))
def test_auto_without_rows_to_see_drafts_what_mix_drafts(prompt: list[int], answer: list[int]) -> None:
    drafts = [replay(source(kind).open("me", prompt), answer) for kind in (MixSource, AutoSource)]
    assert drafts[0] == drafts[1]


def test_an_image_keeps_to_its_size_and_counts_what_it_holds() -> None:
    learner = MixLearner(no_traits())
    image = learner.fresh(SIZE)
    assert len(image) <= SIZE and image.ctypes.data % ALIGNMENT == 0
    drawn = np.random.default_rng(4)
    for _ in range(40):
        learn(learner, image, drawn.integers(0, 1 << 17, 200).astype(np.int32), 100)
    facts = learner.facts(image)
    assert (facts.requests, facts.tokens) == (40, 8000)
    assert facts.nodes == np.count_nonzero(view_image(image).nodes[:, 0])
    assert 0.9 < facts.occupancy <= 1
    with pytest.raises(RequestError, match="too small"):
        learner.fresh(FIXED_BYTES)


def test_a_conversation_that_goes_on_counts_once() -> None:
    learner = MixLearner(no_traits())
    whole = np.arange(100, dtype=np.int32)
    images = [learner.fresh(SIZE) for _ in range(2)]
    learn(learner, images[0], whole[:60], 30)
    learn(learner, images[0], whole, 80)
    learn(learner, images[1], whole, 80)
    assert [learner.facts(image).tokens for image in images] == [100, 100]
    learn(learner, images[0], whole, 80)
    assert learner.facts(images[0]).tokens == 100


@settings(max_examples=20)
@given(st.integers(0, 1 << 32))
def test_an_image_of_any_bytes_does_no_harm(seed: int) -> None:
    """Its drafts are nonsense then, within bounds: the process goes on."""
    memory = VocabularyMemory(MixLearner(no_traits()), SIZE, "none")
    image = memory.of("me").image
    image[:] = np.random.default_rng(seed).integers(0, 256, len(image))
    session = MixSource(no_traits(), memory).open("me", [1, 2, 3, 1, 2])
    for draft in replay(session, [3, 1, 2, 3, 4] * 4):
        assert len(draft.tokens) <= 3
    session.close()
