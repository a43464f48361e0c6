"""The soak, on few tokens: nothing differs, all that is proven is used, and a fault would be seen."""

import numpy as np
import pytest
from both_gates import quick_exactness
from numpy_verifier import NumpyVerifier, SpanDependent, WidthDependent, shape_of
from soak_requests import soak_requests
from soak_round import SoakCount, soak_round

from anespec.gguf.container import GGUFFile
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.passes import Verifier
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import GrammarTokens
from anespec.runtime.text.tokenizer import Tokenizer

SPANNING = shape_of(t_max=16, context=320, sequences=2, partial_spans=True)


def everything(verifier: Verifier) -> Proven:
    """As if a gate had proven all that there is."""
    return Proven(True, verifier.shape.widths, region_independent=True, spans=verifier.shape.spans)


def soaked(
    verifier: Verifier,
    proven: Proven,
    rounds: int,
    requests: int = 6,
    grammar_tokens: GrammarTokens | None = None,
) -> SoakCount:
    """Rounds with drafts that are known to be right, and with prompt lookup."""
    total = SoakCount()
    for number in range(rounds):
        rng = np.random.default_rng([7, number])
        corpus = [int(token) for token in rng.integers(verifier.shape.vocabulary, size=600)]
        asked = list(soak_requests(corpus, verifier.shape, frozenset({2}), rng, requests, grammar_tokens))
        total += soak_round(verifier, proven, asked, [None, LookupSource()], rng)
    return total


@pytest.mark.slow
def test_no_token_differs_and_all_that_is_proven_is_used(embedded_cpu: Artifact) -> None:
    verifier = open_verifier(embedded_cpu, "openvino", 1)
    proven = Proven.of(quick_exactness(verifier, embedded_cpu, "openvino"), verifier.shape)
    assert proven.speculate
    with GGUFFile(embedded_cpu.tokens_path()) as file:
        tokens = GrammarTokens(Tokenizer.from_gguf(file), verifier.shape.vocabulary)
    count = soaked(verifier, proven, rounds=3, grammar_tokens=tokens)
    verifier.close()
    assert count.tokens > 500
    assert count.differing == 0
    assert count.cancelled
    assert count.forced
    assert not count.unused(proven, verifier.shape)


def test_a_verifier_that_keeps_the_law_differs_nowhere() -> None:
    verifier = NumpyVerifier(SPANNING)
    count = soaked(verifier, everything(verifier), rounds=3, requests=3)
    assert count.differing == 0
    assert not count.unused(everything(verifier), SPANNING)


@pytest.mark.parametrize("faulty", [WidthDependent, SpanDependent])
def test_what_is_wrongly_thought_proven_makes_tokens_differ(faulty: type[NumpyVerifier]) -> None:
    verifier = faulty(SPANNING)
    assert soaked(verifier, everything(verifier), rounds=1, requests=3).differing


def test_what_was_never_used_is_named() -> None:
    verifier = NumpyVerifier(SPANNING)
    nothing_used = SoakCount(tokens=9).unused(everything(verifier), SPANNING)
    assert {"drafts accepted", "narrow passes", "short spans"} <= set(nothing_used)
    assert SoakCount().unused(Proven.nothing(SPANNING), SPANNING) == []
