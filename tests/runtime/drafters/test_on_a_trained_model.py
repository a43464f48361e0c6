"""What the verifier itself held likely is worth something on a trained model, and changes no token."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from slow import slow_but

from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.drafters import DraftSource
from anespec.runtime.drafters.auto import AutoSource
from anespec.runtime.drafters.jacobi import JacobiSource
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.runtime.drafters.recycle import RecycleSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import OutputToken, Request
from anespec.runtime.passes import RowKind
from anespec.runtime.proven import Proven

PROMPTS = ((1, 385, 328, 432, 274, 287), (1, 403, 407, 261, 378))
"""What stories260K's vocabulary makes of "One day, Tom" and "Once upon a time"."""

MAX_TOKENS = 80

SOURCES: dict[str, Callable[[int], DraftSource]] = {
    "recycle": RecycleSource,
    "jacobi": lambda _: JacobiSource(),
    "auto": lambda vocabulary: AutoSource(no_traits(), memory(), vocabulary),
}


def memory() -> VocabularyMemory:
    return VocabularyMemory(MixLearner(no_traits()), 1 << 20, "none")


@pytest.fixture(scope="module")
def verifier(stories_cpu: Path) -> Iterator[ArtifactVerifier]:
    verifier = open_verifier(stories_cpu, "torch", threads=1)
    yield verifier
    verifier.close()


def answers(verifier: ArtifactVerifier, source: DraftSource | None) -> list[list[OutputToken]]:
    engine = Engine(verifier, Proven(speculate=True, widths=(verifier.shape.block,)), source)
    return [
        [token for event in engine.generate(Request(prompt, MAX_TOKENS)) for token in event.tokens]
        for prompt in PROMPTS
    ]


def accepted_and_new(answers: list[list[OutputToken]]) -> tuple[int, int]:
    """How many drafted tokens were right, and how many of them nothing in the text could be copied for: their
    two last tokens had never stood side by side before."""
    accepted = new = 0
    for prompt, output in zip(PROMPTS, answers, strict=True):
        text = [*prompt, *(token.id for token in output)]
        pairs = [*pairwise(text)]
        for place, token in enumerate(output, start=len(prompt) - 1):
            if token.kind is RowKind.DRAFT:
                accepted += 1
                new += pairs[place] not in pairs[:place]
    return accepted, new


@pytest.fixture(scope="module")
def plain(verifier: ArtifactVerifier) -> list[list[int]]:
    return [[token.id for token in output] for output in answers(verifier, None)]


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(SOURCES, "auto"))
def test_drafts_are_right_that_lookup_cannot_make(
    verifier: ArtifactVerifier, plain: list[list[int]], name: str
) -> None:
    found = answers(verifier, SOURCES[name](verifier.shape.vocabulary))
    assert [[token.id for token in output] for output in found] == plain
    accepted, new = accepted_and_new(found)
    copied, copied_new = accepted_and_new(answers(verifier, LookupSource()))
    assert copied_new == 0
    assert new > 10
    assert accepted > copied
