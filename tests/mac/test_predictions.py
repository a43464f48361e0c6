"""Core ML's CPU computes what torch does, in every form of K/V and every kind of shapes."""

from contextlib import closing

import pytest
from by_hand import rows_for, run_tokens, same_bits, states
from mac_core_ml import TOKENS, Built, CoreMLHere, Record, require_near
from slow import slow_but

from anespec.manifests.schema import HeadOutputs, KVForm, Shapes
from anespec.runtime.backends import COREML_CPU, TORCH, open_verifier
from anespec.runtime.backends.coreml.backend import CoreMLBackend
from anespec.runtime.backends.coreml.library import ComputeUnits
from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, LogitsRequest, PassPlan, PassResult, run_pass
from anespec.runtime.sampling.row_logits import row_logits


@pytest.mark.fast_only("Core ML-at_position-range")
@pytest.mark.parametrize("shapes", slow_but(Shapes, Shapes.RANGE))
@pytest.mark.parametrize("form", KVForm)
def test_passes_are_torchs(
    core_ml: CoreMLHere, built: Built, form: KVForm, shapes: Shapes, record_property: Record
) -> None:
    """Each form alone, since some were reported broken on the CPUs of macOS 26 (ANE_FACTS, second review)."""
    artifact = built(kv_form=form, shapes=shapes)
    backend = CoreMLBackend(COREML_CPU, ComputeUnits.CPU_ONLY, core_ml.library)
    with closing(backend.open(artifact, 1)) as found, closing(open_verifier(artifact, TORCH)) as expected:
        mine, theirs = run_tokens(found, TOKENS), run_tokens(expected, TOKENS)
        kept = [
            same_bits(a.view("f2"), b.view("f2"))
            for a, b in zip(states(found), states(expected), strict=True)
        ]
    require_near(mine, theirs)
    record_property("logits are torch's bits", same_bits(mine, theirs))
    record_property("K/V are torch's bits", all(kept))
    if not core_ml.real:
        assert same_bits(mine, theirs)
        assert all(kept)


def test_a_pass_gives_the_same_bits_again(core_ml: CoreMLHere, built: Built) -> None:
    backend = CoreMLBackend(COREML_CPU, ComputeUnits.CPU_ONLY, core_ml.library)
    with closing(backend.open(built(shapes=Shapes.STATIC), 1)) as verifier:
        first = run_tokens(verifier, TOKENS)
        assert all(same_bits(run_tokens(verifier, TOKENS), first) for _ in range(5))


@pytest.mark.fast_only("Core ML")
def test_every_width_of_a_range_runs(core_ml: CoreMLHere, built: Built, record_property: Record) -> None:
    artifact = built(shapes=Shapes.RANGE)
    backend = CoreMLBackend(COREML_CPU, ComputeUnits.CPU_ONLY, core_ml.library)
    with closing(backend.open(artifact, 1)) as found, closing(open_verifier(artifact, TORCH)) as expected:
        block = run_tokens(found, TOKENS)
        for width in artifact.manifest.widths:
            mine = run_tokens(found, TOKENS, width=width)
            require_near(mine, run_tokens(expected, TOKENS, width=width))
            record_property(f"{width} rows give the block's bits", same_bits(mine, block))


@pytest.mark.fast_only("Core ML-static")
@pytest.mark.parametrize("shapes", Shapes)
def test_best_tokens_are_those_of_all_logits(core_ml: CoreMLHere, built: Built, shapes: Shapes) -> None:
    artifact = built(shapes=shapes, head_outputs=HeadOutputs.ARGMAX)
    backend = CoreMLBackend(COREML_CPU, ComputeUnits.CPU_ONLY, core_ml.library)
    with closing(backend.open(artifact, 1)) as verifier:
        rows = tuple(rows_for(verifier, TOKENS[: verifier.shape.block], 0))

        def asked(request: LogitsRequest) -> PassResult:
            wanted = dict.fromkeys(range(len(rows)), request)
            return run_pass(verifier, PassPlan(rows, len(rows), verifier.shape.whole_spans, wanted))

        whole, best = asked(ALL_LOGITS), asked(BEST_LOGIT)
    for lane in range(len(rows)):
        logits = whole[lane].logits
        assert logits is not None
        assert best[lane].logits is None
        assert best[lane].best == row_logits([logits], BEST_LOGIT).best
