"""An artifact whose manifest was edited: disagreement with the files is a sentence, before any blow-up."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from converting import build
from slow import slow_but

from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.system.errors import ArtifactError
from anespec.validate.gates import golden_gate

FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
GGUF = FAMILIES / "gemma4-ple.gguf"
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(GGUF, tmp_path_factory.mktemp("whole") / "m.anespec", context=128).path


def first_tensor(manifest: dict[str, Any]) -> dict[str, Any]:
    tensor = manifest["layer_shards"][0]["tensors"][0]
    assert isinstance(tensor, dict)
    return tensor


EDITS: dict[str, Edit] = {
    "another table": lambda m: m["tokens"]["per_layer"].update(tensor="token_embd.weight"),
    "a wider table": lambda m: m["tokens"]["per_layer"].update(width=64),
    "no table": lambda m: m["tokens"].update(per_layer=None),
    "no input for it": lambda m: m["layer_shards"][0].update(per_layer_input=None),
    "another embedding": lambda m: m["tokens"].update(embedding_tensor="per_layer_token_embd.weight"),
    "a narrow rope": lambda m: m["ropes"][0].update(frequencies=[1.0] * 3),
    "no rope": lambda m: m.update(ropes=[]),
    "a tensor of fewer rows": lambda m: first_tensor(m).update(rows=3),
    "a tensor of endless rows": lambda m: first_tensor(m).update(rows=2**40),
    "a tensor far away": lambda m: first_tensor(m).update(first_row=2**40),
    "a tensor of endless columns": lambda m: first_tensor(m).update(columns=2**40),
    "a tensor of no name": lambda m: first_tensor(m).update(tensor="\x1b[2J"),
    "passes of endless rows": lambda m: m.update(block=2**31, t_max=2**31),
}


@pytest.mark.fast_only("another embedding")
@pytest.mark.parametrize("name", slow_but(EDITS, *(name for name in EDITS if name != "another table")))
def test_an_edit_is_refused_in_a_sentence(whole: Path, tmp_path: Path, name: str) -> None:
    root = tmp_path / "m.anespec"
    shutil.copytree(whole, root)
    manifest = json.loads((root / "manifest.json").read_text())
    EDITS[name](manifest)
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="convert the model again") as caught:
        golden_gate(Artifact(root), GGUF, "torch", 1, lambda *_: None)
    assert str(caught.value).isprintable()
    assert not (root / "gates").exists()
    if "tensor" in name:
        return
    with pytest.raises(ArtifactError, match="convert the model again"):
        open_verifier(Artifact(root), "torch", 1)
