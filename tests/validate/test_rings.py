"""A sliding window's ring that goes round many times: the exactness gate, and the law, on real artifacts."""

from pathlib import Path

import pytest
from converting import build
from elsewhere import same
from family_files import Variant

from anespec.manifests.schema import KVForm, Target, WeightFormat
from anespec.manifests.verdicts import RunEnvironment
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.proven import Proven
from anespec.validate.exactness.gate import exactness_gate

CONTEXT, RING = 320, 64
SHALLOW_GEMMA3 = Variant("gemma3", {"block_count": 2, "attention.sliding_window_pattern": 2})
STEM = list(range(3, 53))


def ringed(variant: Variant, folder: Path, form: KVForm = KVForm.SLICE_UPDATE) -> ArtifactVerifier:
    """The variant for a Mac: a ring of window 32 and block 4, which takes 64 slots, beside the context."""
    artifact = build(
        variant.write(folder / "model.gguf"),
        folder / "m.anespec",
        target=Target.MAC,
        weights=WeightChoice(WeightFormat.FP16),
        context=CONTEXT,
        kv_form=form,
    )
    verifier = open_verifier(artifact.path, "openvino", threads=1)
    assert [pool.token_slots for pool in verifier.shape.pools] == [CONTEXT, RING]
    return verifier


@pytest.mark.slow
def test_the_whole_gate_allows_speculation(tmp_path: Path) -> None:
    verifier = ringed(SHALLOW_GEMMA3, tmp_path)
    here = RunEnvironment(backend="openvino", library_version="2", machine="any", threads=1, artifact="0")
    verdict = exactness_gate(verifier, here, form="full", elsewhere=same(verifier))
    verifier.close()
    assert verdict.allows_speculation, verdict.invariances


def chat(verifier: ArtifactVerifier, speculate: bool) -> tuple[list[int], list[int], int]:
    """Two turns, then the first prompt again: all tokens, what each turn used again, and passes."""
    proven = Proven(speculate, widths=(verifier.shape.block,), reuse_prefixes=speculate)
    engine = Engine(verifier, proven, LookupSource())
    turns: list[list[int]] = []
    reused, passes = [], 0
    for number in range(3):
        prompt = STEM + (turns[0] + [7, 9] if number == 1 else [])
        events = list(engine.generate(Request(prompt, max_tokens=80)))
        turns.append([token.id for event in events for token in event.tokens])
        reused.append(events[-1].statistics.reused_tokens)
        passes += events[-1].statistics.decode_passes
    return [token for turn in turns for token in turn], reused, passes


@pytest.mark.parametrize(
    ("variant", "form"),
    [
        pytest.param(SHALLOW_GEMMA3, KVForm.SLICE_UPDATE, marks=pytest.mark.slow),
        (SHALLOW_GEMMA3, KVForm.AT_POSITION),
        pytest.param(Variant("gemma4-ple"), KVForm.SLICE_UPDATE, marks=pytest.mark.slow),
    ],
    ids=["gemma3", "gemma3-at_position", "gemma4-ple"],
)
def test_the_text_is_the_same_with_speculation_and_reused_prefixes(
    variant: Variant, form: KVForm, tmp_path: Path
) -> None:
    verifier = ringed(variant, tmp_path, form)
    plain, nothing, slow = chat(verifier, speculate=False)
    text, reused, quick = chat(verifier, speculate=True)
    verifier.close()
    assert text == plain
    assert quick < slow
    assert nothing == [0, 0, 0]
    # The ring still holds the window of the second turn's prefix; that of the first prompt was kept.
    assert reused == [0, len(STEM) + 79, len(STEM) - 1]
