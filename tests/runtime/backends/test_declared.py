"""A program that is not what the manifest declares of it is refused, whichever side was edited."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import MAIN, Target
from anespec.manifests.store import Artifact, package_bytes, package_sha256
from anespec.runtime.backends import open_shard, open_verifier
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.portable import soundness
from anespec.runtime.backends.portable.mil_package import read_model
from anespec.runtime.backends.portable.program import load_program
from anespec.system.errors import ArtifactError

Edit = Callable[[Any, Any], object]
FLOAT32 = 11


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("declared")
    gguf = write_gguf(folder / "tiny.gguf", TinyModel())
    return build(gguf, folder / "m.anespec", topology=(1, 1), target=Target.CPU, head_shards=2).path


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "m.anespec"))


def edit_program(root: Path, kind: str, number: int, edit: Edit) -> None:
    """Change the program of a shard, and the manifest's size and hash of it to fit."""
    facts = json.loads((root / "manifest.json").read_text())
    entry = facts[kind][number]
    package = root / entry["path"]
    model, folder = read_model(package)
    function = model.mlProgram.functions[MAIN]
    edit(function, function.block_specializations[function.opset])
    next(folder.glob("*.mlmodel")).write_bytes(model.SerializeToString())
    entry |= {"bytes": package_bytes(package), "sha256": package_sha256(package)}
    (root / "manifest.json").write_text(json.dumps(facts))


def edit_manifest(root: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    facts = json.loads((root / "manifest.json").read_text())
    edit(facts)
    (root / "manifest.json").write_text(json.dumps(facts))


def named(values: Any, name: str) -> Any:
    return next(value for value in values if value.name == name)


def plant_state(function: Any, block: Any) -> None:
    """One state more, which nothing outside knows of: what a prompt leaves in it, the next one meets."""
    planted = function.inputs.add()
    planted.CopyFrom(named(function.inputs, "k_0"))
    planted.name = "memory"


def add_input(function: Any, block: Any) -> None:
    added = function.inputs.add()
    added.CopyFrom(named(function.inputs, "rope_cos"))
    added.name = "more"


def rename_state(function: Any, block: Any) -> None:
    named(function.inputs, "k_0").name = "k_9"


def resize_state(function: Any, block: Any) -> None:
    state = named(function.inputs, "k_0").type.stateType.wrappedType.tensorType
    state.dimensions[2].constant.size = 1 << 40


def retype_state(function: Any, block: Any) -> None:
    named(function.inputs, "k_0").type.stateType.wrappedType.tensorType.dataType = FLOAT32


def retype_input(function: Any, block: Any) -> None:
    named(function.inputs, "x").type.tensorType.dataType = FLOAT32


def resize_input(function: Any, block: Any) -> None:
    named(function.inputs, "x").type.tensorType.dimensions[1].constant.size = 16


def return_another(function: Any, block: Any) -> None:
    block.outputs[0] = block.operations[-2].outputs[0].name


def return_nothing(function: Any, block: Any) -> None:
    del block.outputs[:]


def return_twice(function: Any, block: Any) -> None:
    block.outputs.append(block.outputs[0])


def return_what_is_not(function: Any, block: Any) -> None:
    block.outputs[0] = "nowhere"


PROGRAM_EDITS = [
    plant_state, add_input, rename_state, resize_state, retype_state, retype_input, resize_input,
    return_another, return_nothing, return_twice, return_what_is_not,
]  # fmt: skip


@pytest.mark.parametrize("edit", PROGRAM_EDITS, ids=lambda edit: edit.__name__)
def test_a_program_that_is_not_as_declared_is_refused(root: Path, edit: Edit) -> None:
    edit_program(root, "layer_shards", 0, edit)
    artifact = Artifact(root)
    opened: list[Callable[[], object]] = [
        lambda: open_verifier(artifact, "torch", 1),
        lambda: open_shard(artifact, artifact.manifest.layer_shards[0], "torch", 1),
    ]
    for opens in opened:
        with pytest.raises(ArtifactError, match="convert the model again") as caught:
            opens()
        assert str(caught.value).isprintable()


def test_a_planted_state_is_named(root: Path) -> None:
    edit_program(root, "layer_shards", 0, plant_state)
    with pytest.raises(ArtifactError, match=r"state 'memory' of .* is of shape .* but missing in the man"):
        open_verifier(root, "torch", 1)


def test_a_state_that_the_manifest_leaves_out_is_refused(root: Path) -> None:
    edit_manifest(root, lambda facts: facts["layer_shards"][0]["states"].pop())
    with pytest.raises(ArtifactError, match=r"layer 0 of .* has 1 K or V state, not two"):
        open_verifier(root, "torch", 1)


def test_a_state_that_the_manifest_lists_twice_is_refused(root: Path) -> None:
    def twice(facts: dict[str, Any]) -> None:
        states = facts["layer_shards"][0]["states"]
        states.append(states[0])

    edit_manifest(root, twice)
    with pytest.raises(ArtifactError, match="two states are called 'k_0'"):
        Artifact(root)


def test_a_state_in_a_pool_that_is_not_there_is_refused(root: Path) -> None:
    edit_manifest(root, lambda facts: facts["layer_shards"][0]["states"][0].update(pool="elsewhere"))
    with pytest.raises(ArtifactError, match="is in the pool 'elsewhere', which does not exist"):
        Artifact(root)


def test_the_verifier_exports_every_state_that_the_programs_have(whole: Path) -> None:
    artifact = Artifact(whole)
    shards = artifact.manifest.layer_shards
    held = [name for shard in shards for name in load_program(artifact.shard_path(shard)).states]
    verifier = open_verifier(artifact, "torch", 1)
    exported = [
        array for pool in range(len(verifier.shape.pools)) for array in verifier.export_slots(pool, 0, 1)
    ]
    assert [state.name for state in verifier.layers[0].states] == held
    assert len(exported) == len(held) == 4
    verifier.close()


def widths(facts: dict[str, Any], first: int, second: int) -> None:
    """Head shards of other widths, which still cover the vocabulary."""
    for head, (start, end) in zip(facts["head_shards"], ((0, first), (first, first + second)), strict=True):
        head |= {"first_token": start, "end_token": end}
        head["outputs"][0]["shape"] = [1, end - start, None, 1]
    facts["hyperparameters"]["vocabulary"] = first + second


@pytest.mark.parametrize("cut", [(19, 21), (20, 40), (20, 10)])
def test_heads_of_other_widths_are_refused(root: Path, cut: tuple[int, int]) -> None:
    edit_manifest(root, lambda facts: widths(facts, *cut))
    with pytest.raises(ArtifactError, match=r"output 'logits_\d+' of .* is of shape .* but of shape"):
        open_verifier(root, "torch", 1)


def test_an_embedding_of_fewer_tokens_is_refused(root: Path) -> None:
    edit_manifest(root, lambda facts: widths(facts, 20, 40))
    with pytest.raises(ArtifactError, match="has 40 rows, but the vocabulary of the manifest has 60 tokens"):
        open_embedding(Artifact(root))


def test_states_that_no_memory_could_hold_are_refused(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "machine_memory", lambda: 1000)
    with pytest.raises(ArtifactError, match=r"K/V states take .* and this machine has 1\.0 kB of memory"):
        open_verifier(whole, "torch", 1)
    monkeypatch.undo()
    open_verifier(whole, "torch", 1).close()
