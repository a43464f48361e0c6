"""The native worker computes what torch does, and what Core ML computes through coremltools."""

from contextlib import closing

import pytest
from by_hand import run_tokens, same_bits
from mac_core_ml import TOKENS, Built, CoreMLHere, Record, require_near

from anespec.manifests.schema import KVForm, Shapes
from anespec.runtime.backends import COREML_CPU, TORCH, WORKER, open_verifier


@pytest.mark.fast_only("Core ML-reread")
@pytest.mark.parametrize("form", KVForm)
def test_the_workers_passes_are_torchs(
    worker: CoreMLHere, built: Built, form: KVForm, record_property: Record
) -> None:
    artifact = built(kv_form=form, shapes=Shapes.STATIC)
    with (
        closing(open_verifier(artifact, WORKER)) as found,
        closing(open_verifier(artifact, TORCH)) as expected,
    ):
        mine, theirs = run_tokens(found, TOKENS), run_tokens(expected, TOKENS)
        assert same_bits(run_tokens(found, TOKENS), mine), "another run gives other bits"
    require_near(mine, theirs)
    record_property("logits are torch's bits", same_bits(mine, theirs))
    if not worker.real:
        assert same_bits(mine, theirs)
        return
    with closing(open_verifier(artifact, COREML_CPU)) as other:
        same = same_bits(mine, run_tokens(other, TOKENS))
    record_property("logits are those of coremltools on the CPU, bit for bit", same)
