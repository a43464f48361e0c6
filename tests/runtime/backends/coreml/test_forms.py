"""Every form of K/V gives torch's own bits through coremltools' own classes."""

from pathlib import Path

import pytest
from by_hand import run_tokens, same_bits, states
from converting import build
from light_core_ml import meet_here
from slow import slow_but
from standin_core_ml import stand_in
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import KVForm, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.coreml.backend import CoreMLBackend
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLTools

TOKENS = [1, 5, 9, 5, 1, 7, 3, 3, 8, 2]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CoreMLBackend:
    """Core ML stood in for; load probes are made in this process, which spares the starts of others."""
    stand_in(monkeypatch)
    meet_here(monkeypatch, CoreMLTools())
    return CoreMLBackend("coreml", ComputeUnits.CPU_AND_NE)


@pytest.mark.parametrize("form", slow_but(KVForm, KVForm.OUTSIDE, KVForm.AT_POSITION))
def test_every_form_gives_torchs_own_bits(tmp_path: Path, backend: CoreMLBackend, form: KVForm) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel(layers=2))
    path = build(
        source, tmp_path / "m.anespec", target=Target.MAC, context=64, topology=(1, 1), kv_form=form
    ).path
    found, expected = backend.open(Artifact(path), 1), open_verifier(path, "torch", threads=1)
    assert same_bits(run_tokens(found, TOKENS), run_tokens(expected, TOKENS))
    assert all((a == b).all() for a, b in zip(states(found), states(expected), strict=True))
    found.copy_slots(0, 0, 16, 4)
    expected.copy_slots(0, 0, 16, 4)
    assert all((a == b).all() for a, b in zip(states(found), states(expected), strict=True))
    found.close()
    expected.close()
