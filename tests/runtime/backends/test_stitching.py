"""Several shards stitched into one program compute what one shard does."""

from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import greedy, run_tokens, same_bits, states
from converting import build
from graphs import layers, reloaded
from slow import slow_but

from anespec.convert.planning import topology
from anespec.manifests.schema import AttentionShape, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.portable.program import Operation, chain, load_program, merge
from anespec.system.errors import ArtifactError

PROMPT = [1, 403, 407, 261, 378, 31, 5, 77, 9, 410]


@pytest.fixture(scope="module")
def cut(shared_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of `stories_cpu` in two layer shards and three head shards."""
    return build(
        shared_models / "stories260K.F16.gguf",
        tmp_path_factory.mktemp("cut") / "cut.anespec",
        target=Target.CPU,
        weights=WeightChoice(WeightFormat.FP16),
        context=256,
        topology=(2, 3),
        head_shards=3,
    ).path


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch", "openvino"))
def test_several_shards_give_the_bits_of_one(stories_cpu: Path, cut: Path, backend: str) -> None:
    one, several = (open_verifier(path, backend, threads=1) for path in (stories_cpu, cut))
    assert same_bits(run_tokens(one, PROMPT), run_tokens(several, PROMPT))
    assert greedy(one, PROMPT, 12)[0] == greedy(several, PROMPT, 12)[0]
    assert all((a == b).all() for a, b in zip(states(one), states(several), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch"))
def test_a_head_in_slices_gives_the_bits_of_one_convolution(
    shared_models: Path, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"target": Target.CPU, "weights": WeightChoice(WeightFormat.FP16), "context": 256}
    gguf = shared_models / "stories260K.F16.gguf"
    whole = build(gguf, tmp_path / "whole.anespec", **options)
    monkeypatch.setattr(topology, "HEAD_CHANNELS", 100)
    sliced = build(gguf, tmp_path / "sliced.anespec", **options)
    (head,) = sliced.manifest.head_shards
    assert [spec.name for spec in head.outputs] == [f"logits_{at}" for at in (0, 86, 172, 257, 342, 427)]
    one, several = (open_verifier(built.path, backend, threads=1) for built in (whole, sliced))
    assert same_bits(run_tokens(one, PROMPT), run_tokens(several, PROMPT))


def test_a_chain_joins_hidden_states_and_keeps_its_inputs(cut: Path) -> None:
    artifact = Artifact(cut)
    programs = [load_program(artifact.shard_path(shard)) for shard in artifact.manifest.layer_shards]
    joined = chain(programs, "x", "hidden")
    assert joined.inputs == programs[0].inputs
    assert list(joined.states) == [*programs[0].states, *programs[1].states]
    assert len(joined.operations) == sum(len(program.operations) for program in programs)
    assert joined.outputs == ("1/hidden",)
    names = [name for op in joined.operations for name in op.outputs]
    assert len(set(names)) == len(names)
    users = [op.name for op in joined.operations if ("0/hidden",) in op.inputs.values()]
    assert users
    assert all(name.startswith("1/") for name in users)


def test_shards_that_share_a_state_cannot_be_chained(tmp_path: Path) -> None:
    program = reloaded(layers(AttentionShape.GROUPED), tmp_path)
    with pytest.raises(ArtifactError, match="has a state that an earlier shard also has"):
        chain([program, replace(program)], "x", "hidden")


def test_heads_stand_in_order(cut: Path) -> None:
    artifact = Artifact(cut)
    programs = [load_program(artifact.shard_path(shard)) for shard in artifact.manifest.head_shards]
    assert merge(programs).outputs == ("0/logits_0", "1/logits_171", "2/logits_342")
    assert merge(programs[:1]) is programs[0]


def test_shards_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    first = reloaded(layers(AttentionShape.GROUPED), tmp_path / "first")
    second = reloaded(layers(AttentionShape.GROUPED, range(1, 2)), tmp_path / "second")
    narrow = reloaded(layers(AttentionShape.GROUPED, rotary_dim=2), tmp_path / "narrow")
    with pytest.raises(ArtifactError, match="takes inputs of other shapes than the shards before it"):
        chain([narrow, second], "x", "hidden")
    with pytest.raises(ArtifactError, match="takes other inputs than"):
        merge([narrow, second])
    identity = Operation("identity", "hidden", {"x": ("rope_cos",)}, ("hidden",))
    narrow_hidden = replace(first, operations=(*first.operations[:-1], identity))
    with pytest.raises(ArtifactError, match=r"and the 1 after it: \w+ 1/\S+ "):
        chain([narrow_hidden, second], "x", "hidden")
    with pytest.raises(ArtifactError, match="does not compute 'hidden' from 'x'"):
        chain([first, replace(second, outputs=("other",))], "x", "hidden")
