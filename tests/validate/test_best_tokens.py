"""The function of heads that finds the best tokens, under both gates, and what a person sees of it."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from converting import build
from planted import EMBEDDED, golden_of
from slow import slow_but

import anespec
from anespec.convert.graph import shards
from anespec.convert.graph.builder import Var, mb
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessVerdict, Invariance
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.backends import verifier as verifier_module
from anespec.validate.exactness.gate import exactness_gate

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

BACKENDS = ("torch", "openvino", "mlx")
DIGITS = shards._digits
BEST_OF = verifier_module.best_of_slices


@pytest.fixture(scope="module")
def argmax(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return converted(tmp_path_factory.mktemp("argmax"), head_outputs="argmax")


def converted(folder: Path, **options: object) -> Artifact:
    """The embedded model for a Mac, in 128 slots."""
    return Artifact(build(EMBEDDED, folder / "m.anespec", context=128, **options).path)


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(BACKENDS, "torch", "openvino"))
def test_the_exactness_gate_proves_it(argmax: Artifact, backend: str) -> None:
    with closing(open_verifier(argmax, backend, 1)) as verifier:
        verdict = exactness_gate(verifier, circumstances(argmax, backend, 1), form="quick")
    assert not failed_but_width(verdict)


def failed_but_width(verdict: ExactnessVerdict) -> list[str]:
    """Details of what differs, but for the widths that torch adds up in another order."""
    each = (each for each in verdict.invariances if each.unequal and each.invariance is not Invariance.WIDTH)
    return [invariance.detail for invariance in each]


def one_behind(tokens: int) -> tuple[Var, Var]:
    """Digits of the token before, where that is in the same hundred."""
    first, second = DIGITS(tokens)
    return first, mb.const(val=np.minimum(second.val + np.float16(1), np.float16(128)))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_digits", one_behind)
        return converted(tmp_path_factory.mktemp("faulty"), head_outputs="argmax")


@pytest.mark.parametrize("backend", slow_but(BACKENDS, "openvino"))
def test_a_wrong_number_fails_the_exactness_gate(faulty: Artifact, backend: str) -> None:
    with closing(open_verifier(faulty, backend, 1)) as verifier:
        verdict = exactness_gate(verifier, circumstances(faulty, backend, 1), form="quick")
    assert not verdict.allows_speculation
    assert "different top or chosen logits" in failed_but_width(verdict)[0]


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(BACKENDS, "torch"))
def test_a_wrong_number_fails_the_golden_gate(faulty: Artifact, argmax: Artifact, backend: str) -> None:
    assert golden_of(argmax, EMBEDDED, backend, greedy_tokens=8).passed
    assert not golden_of(faulty, EMBEDDED, backend, greedy_tokens=8).passed


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(BACKENDS, "torch", "openvino"))
def test_greedy_text_is_the_same_with_drafts_accepted(
    argmax: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """A request that needs more than the best token takes all logits, and says the same as well."""
    usual, found = converted(tmp_path), []
    monkeypatch.setattr(verifier_module, "best_of_slices", lambda *given: found.append(1) or BEST_OF(*given))
    texts = []
    for artifact, drafter in ((usual, "none"), (argmax, "lookup")):
        with anespec.load(
            artifact.root, backend=backend, threads=1, drafter=drafter, progress=False
        ) as model:
            prompt = "one two three four one two three four one two"
            done = model.generate(prompt, max_tokens=40, temperature=0)
            texts.append(done.text)
            rows = len(found)
            likely = model.generate(prompt, max_tokens=4, temperature=0, logprobs=2)
            assert len(found) == rows
            assert done.text.startswith(likely.text)
    assert texts[0] == texts[1]
    assert rows >= 10
    assert done.statistics.accepted > 0
