"""A model per function, one state for all of them: torch's own bits at every width."""

from pathlib import Path

import pytest
from by_hand import run_tokens, same_bits, states
from converting import build
from light_core_ml import meet_here
from standin_core_ml import stand_in
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Shapes, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.coreml.backend import CoreMLBackend
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLTools

TOKENS = [1, 5, 9, 5, 1, 7, 3, 3, 8, 2]


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [Shapes.STATIC, Shapes.FUNCTIONS])
def test_widths_share_states_and_give_torchs_own_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: Shapes
) -> None:
    stand_in(monkeypatch)
    meet_here(monkeypatch, CoreMLTools())
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel(layers=2))
    path = build(source, tmp_path / "m.anespec", target=Target.MAC, context=128, shapes=shapes).path
    found = CoreMLBackend("coreml", ComputeUnits.CPU_AND_NE).open(Artifact(path), 1)
    expected = open_verifier(path, "torch", threads=1)
    assert len(found.shape.widths) == (2 if shapes is Shapes.FUNCTIONS else 1)
    start = 0
    for width in (*reversed(found.shape.widths), found.shape.block):
        rows = [run_tokens(each, TOKENS, start, width) for each in (found, expected)]
        assert same_bits(*rows)
        start += len(TOKENS)
    assert all((a == b).all() for a, b in zip(states(found), states(expected), strict=True))
    found.close()
    expected.close()
