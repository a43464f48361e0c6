"""What a pass has to do is counted in the graph itself: by hand for each form, and alike before and after."""

from pathlib import Path

import pytest
from converting import build
from graphs import HEAD_DIM, KV_HEADS, POOL, SLOTS, layers
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec.convert.options import ConvertOptions
from anespec.convert.package import write_package
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import Matrix, SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import AttentionShape, KVForm, Shapes, StateSpec, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.mil_package import read_package
from anespec.validate.cost_model.planned import planned_work
from anespec.validate.cost_model.work import PassWork, ShardWork

ROWS = 4
ONE = 2 * KV_HEADS * SLOTS * HEAD_DIM
"""Bytes of a layer's K, or of its V."""
NEW = 2 * KV_HEADS * ROWS * HEAD_DIM
"""Bytes of a pass's rows of them."""

BLEND = 2 * (2 + 1 + 3 + 2 + 1) * ONE
"""Read, scaled and written; the new rows spread out; both read and added up; stored; attended to."""

MOVED = {
    "reread": BLEND,
    "blended": BLEND,
    "slice_update": BLEND,
    "packed": BLEND,
    # Nothing is stored in the graph: the host writes the new rows.
    "outside": 2 * (2 + 1 + 3 + 1) * ONE + 2 * NEW,
    # The new rows are read and stored, and all slots attended to.
    "at_position": 2 * ONE + 2 * 2 * NEW,
}
ROWS_ALONE = {"outside", "at_position"}


def shard_work(folder: Path, form: KVForm, shape: AttentionShape) -> ShardWork:
    path = folder / "shard.mlpackage"
    write_package(layers(shape, kv_form=form), path)
    state = StateSpec(name="k_0", shape=(1, KV_HEADS, SLOTS, HEAD_DIM), pool=POOL.name, layers=(0,))
    return ShardWork.of(read_package(path).functions["main"], [state], [POOL], ROWS)


@pytest.mark.fast_only("per_kv_head-reread")
@pytest.mark.parametrize("form", KVForm)
@pytest.mark.parametrize("shape", slow_but(AttentionShape, AttentionShape.PER_KV_HEAD))
def test_bytes_of_keys_and_values_are_those_counted_by_hand(
    form: KVForm, shape: AttentionShape, tmp_path: Path
) -> None:
    work = shard_work(tmp_path, form, shape)
    assert work.kv_moved == MOVED[form]
    assert work.kv_written == 2 * (NEW if form in ROWS_ALONE else ONE)


def test_grouped_attention_has_fewer_operations(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    grouped = shard_work(tmp_path / "a", KVForm.SLICE_UPDATE, AttentionShape.GROUPED)
    per_head = shard_work(tmp_path / "b", KVForm.SLICE_UPDATE, AttentionShape.PER_KV_HEAD)
    assert grouped.operations < per_head.operations


@pytest.mark.slow
@pytest.mark.parametrize("shapes", Shapes)
@pytest.mark.parametrize("form", slow_but([KVForm.SLICE_UPDATE, KVForm.OUTSIDE], KVForm.OUTSIDE))
def test_a_plan_and_the_artifact_made_by_it_have_the_same_work(
    shapes: Shapes, form: KVForm, tmp_path: Path
) -> None:
    source = write_gguf(tmp_path / "m.gguf", TinyModel())
    options = ConvertOptions(target=Target.MAC, context=128, shapes=shapes, kv_form=form)
    with GGUFFile(source) as file:
        planned = planned_work(ConversionPlan(SourceModel(file), options))
    done = build(source, tmp_path / "m.anespec", target=Target.MAC, context=128, shapes=shapes, kv_form=form)
    assert PassWork.of_artifact(Artifact(done.path)) == planned
    assert planned.dispatches == len(done.manifest.shards)
    assert planned.weight_bytes == sum(tensor.bytes for tensor in done.manifest.tensors)
    assert planned.rows == options.block


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_but(["gemma3", "gemma4", "phi3"], "gemma3"))
def test_layers_of_several_kinds_are_each_counted(families: Path, family: str, tmp_path: Path) -> None:
    source = families / f"{family}.gguf"
    with GGUFFile(source) as file:
        model = SourceModel(file)
        options = {"target": Target.MAC, "context": 128, "topology": (1,) * len(model.facts.layers)}
        planned = planned_work(ConversionPlan(model, ConvertOptions(**options)))
    done = build(source, tmp_path / "m.anespec", **options)
    assert planned.dispatches > 2
    assert PassWork.of_artifact(Artifact(done.path)) == planned


def test_no_projection_is_read_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("rows", "blocks"):
        monkeypatch.setattr(Matrix, method, lambda *_: pytest.fail("a projection is read"))
    with GGUFFile(write_gguf(tmp_path / "m.gguf", TinyModel())) as file:
        plan = ConversionPlan(SourceModel(file), ConvertOptions(target=Target.MAC, context=128))
        assert planned_work(plan).operations > 0
