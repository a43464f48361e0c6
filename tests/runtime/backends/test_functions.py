"""Several functions of a shard: one graph, one set of weights; anything else is refused in one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import rows_for
from converting import build
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Shapes, Target, WeightFormat
from anespec.manifests.store import Artifact, package_bytes, package_sha256
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_shard, open_verifier
from anespec.runtime.backends.portable.mil_package import read_model
from anespec.runtime.passes import run_rows
from anespec.system.errors import ArtifactError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    return build(
        write_gguf(folder / "tiny.gguf", TinyModel()),
        folder / "m.anespec",
        target=Target.MAC,
        shapes=Shapes.FUNCTIONS,
        prefill_block=16,
        topology=(1, 1),
        weights=WeightChoice(WeightFormat.INT8_CHANNEL),
    ).path


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "m.anespec"))


def edit(root: Path, change: Callable[[Any], object]) -> None:
    """Change the first shard's protobuf, and what the manifest says of its files."""
    facts = json.loads((root / "manifest.json").read_text())
    entry = facts["layer_shards"][0]
    package = root / entry["path"]
    model, folder = read_model(package)
    change(model)
    next(folder.glob("*.mlmodel")).write_bytes(model.SerializeToString())
    entry |= {"bytes": package_bytes(package), "sha256": package_sha256(package)}
    (root / "manifest.json").write_text(json.dumps(facts))


def block_of(model: Any, name: str = "rows_16") -> Any:
    function = model.mlProgram.functions[name]
    return function.block_specializations[function.opset]


def other_weights(model: Any) -> None:
    """V's weights where K's should be: of the same shape and type, so nothing else can tell."""
    named = {op.outputs[0].name: op for op in block_of(model).operations if op.outputs}
    k, v = (named[f"layer_0_{part}_weight"].inputs["data"].arguments[0].value.blobFileValue for part in "kv")
    assert k.offset != v.offset
    k.offset = v.offset


def other_number(model: Any) -> None:
    """A constant that is written out in the program."""
    for operation in block_of(model).operations:
        if operation.type == "const" and operation.outputs[0].type.tensorType.rank == 1:
            tensor = operation.attributes["val"].immediateValue.tensor
            if len(tensor.ints.values):
                tensor.ints.values[0] += 1
                return
    raise AssertionError("no constant to change")


def other_operation(model: Any) -> None:
    next(op for op in block_of(model).operations if op.type == "silu").type = "relu"


def one_operation_less(model: Any) -> None:
    del block_of(model).operations[-1]


def rename(model: Any) -> None:
    model.mlProgram.functions["rows_32"].CopyFrom(model.mlProgram.functions["rows_16"])
    del model.mlProgram.functions["rows_16"]


def one_more(model: Any) -> None:
    model.mlProgram.functions["rows_32"].CopyFrom(model.mlProgram.functions["rows_16"])


def other_default(model: Any) -> None:
    model.description.defaultFunctionName = "rows_16"


def other_rows(model: Any) -> None:
    x = next(value for value in model.mlProgram.functions["rows_16"].inputs if value.name == "x")
    x.type.tensorType.dimensions[2].constant.size = 8


def other_state(model: Any) -> None:
    state = next(v for v in model.mlProgram.functions["rows_16"].inputs if v.name == "k_0")
    state.type.stateType.wrappedType.tensorType.dimensions[2].constant.size = 32


FAULTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "other weights": (other_weights, "and 'rows_4' are different graphs"),
    "another number": (other_number, "and 'rows_4' are different graphs"),
    "another operation": (other_operation, "and 'rows_4' are different graphs"),
    "one operation less": (one_operation_less, "and 'rows_4' are different graphs"),
    "a missing function": (lambda model: model.mlProgram.functions.pop("rows_16"), "has the functions"),
    "a renamed function": (rename, "has the functions 'rows_32' and 'rows_4'"),
    "one function more": (one_more, "has the functions"),
    "another default": (other_default, "its default function is 'rows_16', not 'rows_4'"),
    "other rows": (other_rows, ", at no T"),
    "another state": (other_state, ", at no T"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_functions_that_do_not_belong_together_are_refused(root: Path, fault: str) -> None:
    change, complaint = FAULTS[fault]
    edit(root, change)
    artifact = Artifact(root)
    for opening in (
        lambda: open_verifier(artifact, "torch", 1),
        lambda: open_shard(artifact, artifact.manifest.layer_shards[0], "openvino", 1),
    ):
        with pytest.raises(ArtifactError, match=complaint) as caught:
            opening()
        assert str(caught.value).endswith("; convert the model again")
        assert "\n" not in str(caught.value)


def test_an_unchanged_copy_is_taken(root: Path) -> None:
    edit(root, lambda model: None)
    open_verifier(root, "torch", 1).close()


@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch", "openvino"))
def test_only_the_functions_widths_run(whole: Path, backend: str) -> None:
    verifier = open_verifier(whole, backend, threads=1)
    assert verifier.shape.widths == (4, 16)
    tokens = [1, 5, 9, 13]
    logits = [run_rows(verifier, rows_for(verifier, tokens, 0), width) for width in (4, 16)]
    np.testing.assert_allclose(logits[0].astype(float), logits[1].astype(float), atol=0.02)
    for width in (5, 8, 32):
        with pytest.raises(ArtifactError, match=f"the shards have no function for passes of {width} rows"):
            run_rows(verifier, rows_for(verifier, tokens, 0), width)
    verifier.close()
