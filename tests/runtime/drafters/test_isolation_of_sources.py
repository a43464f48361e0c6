"""Whatever one tenant does, another's drafts stay the same, and equal requests get the same drafts twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from markov import VOCABULARY, Conversation

from anespec.runtime.drafters import Draft, DraftSource
from anespec.runtime.drafters.auto import AutoSource
from anespec.runtime.drafters.jacobi import JacobiSource
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.source import MixSource
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.runtime.drafters.mod import ModSettings, ModSource
from anespec.runtime.drafters.recycle import RecycleSource


def memory() -> VocabularyMemory:
    return VocabularyMemory(MixLearner(no_traits()), 1 << 20, "none")


SOURCES: dict[str, Callable[[], DraftSource]] = {
    "recycle": lambda: RecycleSource(VOCABULARY),
    "jacobi": JacobiSource,
    "mix": lambda: MixSource(no_traits(), memory()),
    "auto": lambda: AutoSource(no_traits(), memory(), VOCABULARY),
    "mod": lambda: ModSource(ModSettings(n=2, entries=1 << 12)),
}


@dataclass(frozen=True)
class Asked:
    """A request: whose, its prompt, which model answers, and in how many passes."""

    tenant: str
    prompt: tuple[int, ...]
    model: int
    passes: int


prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=60).map(tuple)
requests = st.builds(Asked, st.sampled_from(["me", "you"]), prompts, st.integers(0, 2), st.integers(1, 12))
traffic = st.lists(st.lists(requests, min_size=1, max_size=3), min_size=1, max_size=4)
"""Requests, those of a list at a time."""


def drafts(source: DraftSource, history: Sequence[Sequence[Asked]], tenant: str) -> list[list[Draft]]:
    found = []
    for together in history:
        talks = [Conversation.begun(source, each.tenant, each.prompt, each.model) for each in together]
        for turn in range(max((each.passes for each in together), default=0)):
            for each, talk in zip(together, talks, strict=True):
                if turn < each.passes:
                    talk.step()
        for each, talk in zip(together, talks, strict=True):
            talk.session.close()
            if each.tenant == tenant:
                found.append(talk.drafts)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=examples(40))
@given(traffic)
def test_no_owner_sees_what_another_asked(name: str, history: list[list[Asked]]) -> None:
    alone = [[each for each in together if each.tenant == "me"] for together in history]
    assert drafts(SOURCES[name](), history, "me") == drafts(SOURCES[name](), alone, "me")


@pytest.mark.parametrize("name", SOURCES)
def test_an_owner_s_own_requests_are_remembered(name: str) -> None:
    """Else the test above would see nothing."""
    source = SOURCES[name]()
    prompt = tuple(range(VOCABULARY))
    first, again, other = (Conversation.begun(source, tenant, prompt) for tenant in ("me", "me", "you"))
    for talk in (first, again, other):
        for _ in range(20):
            talk.step()
        talk.session.close()
    assert again.drafts != first.drafts == other.drafts
    assert again.accepted > first.accepted


@pytest.mark.fast_only("recycle")
@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=10)
@given(traffic)
def test_a_replay_gives_the_same_drafts_twice(name: str, history: list[list[Asked]]) -> None:
    assert drafts(SOURCES[name](), history, "me") == drafts(SOURCES[name](), history, "me")
