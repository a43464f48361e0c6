"""Real artifacts under the exactness gate, and why the law of DESIGN.md section 5 is as it is."""

from collections.abc import Iterator

import numpy as np
import pytest
from both_gates import quick_exactness_of
from planted import TORCH, needs_stories
from slow import slow_but

from anespec.manifests.schema import WeightFormat
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.passes import Logits, Row, RowKind, RowSlots, run_rows
from anespec.validate.exactness.bit_comparison import compare, same_bits
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.invariance_cases import Probe, one_row_a_pass

TOKENS = (1, *np.random.default_rng(0).integers(3, 512, size=95).tolist())


@pytest.fixture
def fp16(stories: dict[WeightFormat, Artifact]) -> Iterator[ArtifactVerifier]:
    verifier = open_verifier(stories[WeightFormat.FP16], TORCH, 1)
    yield verifier
    verifier.close()


@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "openvino"))
def test_the_embedded_model_allows_speculation(embedded: Artifact, backend: str) -> None:
    verdict = quick_exactness_of(embedded, backend)
    assert verdict.allows_speculation, verdict.invariances


FORMATS_OF = {"torch": [WeightFormat.INT8_CHANNEL], "openvino": WeightFormat, "mlx": WeightFormat}
"""The formats that may change how a backend adds up; torch multiplies with fp16 numbers in all of them."""


@pytest.mark.slow
@needs_stories
@pytest.mark.parametrize(
    ("weights", "backend"), [(weights, backend) for backend in FORMATS_OF for weights in FORMATS_OF[backend]]
)
def test_a_trained_model_allows_speculation(
    stories: dict[WeightFormat, Artifact], weights: WeightFormat, backend: str
) -> None:
    verdict = quick_exactness_of(stories[weights], backend)
    assert verdict.allows_speculation, verdict.invariances


@pytest.mark.slow
@needs_stories
def test_one_shape_because_another_width_rounds_differently(fp16: ArtifactVerifier) -> None:
    runner, probe = CaseRunner(fp16), Probe((), 0, TOKENS)
    runner.prepare(probe)
    at_four = runner.run(one_row_a_pass(probe, 4), probe)
    again = runner.run(one_row_a_pass(probe, 4, lane=2), probe)
    at_one = runner.run(one_row_a_pass(probe, 1), probe)
    assert compare(at_four, again, "another lane").unequal == 0
    assert compare(at_four, at_one, "another width").unequal > 0


@pytest.mark.slow
@needs_stories
def test_home_slots_because_permuted_slots_add_up_differently(fp16: ArtifactVerifier) -> None:
    order = np.random.default_rng(0).permutation(len(TOKENS)).tolist()
    home = _logits_at(fp16, list(range(len(TOKENS))))
    permuted = _logits_at(fp16, order)
    assert all(same_bits(a, b) for a, b in zip(home, _logits_at(fp16, sorted(order)), strict=True))
    assert not all(same_bits(a, b) for a, b in zip(home, permuted, strict=True))
    np.testing.assert_allclose(np.stack(permuted), np.stack(home), atol=0.2)


def _logits_at(verifier: ArtifactVerifier, slots: list[int]) -> list[Logits]:
    """The logits of every token, one row a pass, where token i lives in `slots[i]`."""
    rows = []
    for position, token in enumerate(TOKENS):
        visible = tuple(range(slot, slot + 1) for slot in slots[: position + 1])
        row = Row(RowKind.CARRY, token, position, (RowSlots(slots[position], visible),))
        pad = Row(RowKind.PAD, 0, 0, (RowSlots(None, visible[:1]),))
        rows.append(run_rows(verifier, (row, *(pad,) * (verifier.shape.block - 1)))[0])
    return rows
