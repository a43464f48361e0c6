"""A plan's work is counted in few layers, and is that of the whole graph."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from family_files import Variant
from family_variants import CASES, slides

from anespec.convert.build import layers_model, unit_model
from anespec.convert.layers import layer_shard_plan
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import LayersUnit
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import KVForm, Target
from anespec.runtime.backends.portable.mil_package import model_classes, read_functions
from anespec.validate.cost_model.planned import planned_shards
from anespec.validate.cost_model.work import ShardWork, block_function

SHARING = {"attention.shared_kv_layers": 5, "embedding_length_per_layer_input": 16}
MODELS = {
    "llama": Variant("llama", {"block_count": 9}),
    "qwen3": Variant("qwen3", {"block_count": 7}),
    "phi3": Variant("phi3", {"block_count": 6}),
    "gemma2": Variant("gemma2", {"block_count": 11}),
    "gemma3": Variant("gemma3", {"block_count": 14}),
    "gemma4 with shared K/V": Variant("gemma4-ple", slides("ssf" * 5) | SHARING),
    "smollm3, some layers without rope": CASES["smollm3 of 9 layers"].variant,
    "olmo3": CASES["olmo3"].variant,
    "deepseek2": Variant("deepseek2", {"block_count": 6}),
    "a bias in one layer": Variant("llama", {"block_count": 8}, {"blk.3.attn_q.bias": True}),
}


@contextmanager
def planned(source: Path, **chosen: Any) -> Iterator[ConversionPlan]:
    """One shard of all layers, for a Mac."""
    with GGUFFile(source) as file:
        model = SourceModel(file)
        topology = (len(model.facts.layers),)
        yield ConversionPlan(
            model, ConvertOptions(target=Target.MAC, context=128, topology=topology, **chosen)
        )


def whole(plan: ConversionPlan, indices: range) -> ShardWork:
    """What stands in the graph with every layer."""
    model = model_classes().Model()
    model.ParseFromString(unit_model(plan, LayersUnit(indices)))
    function = block_function(read_functions(model), plan.passes.functions[0].name)
    states = layer_shard_plan(plan, indices).states
    return ShardWork.of(function, states, plan.pools, plan.options.block)


FORMS = (KVForm.SLICE_UPDATE, KVForm.PACKED, KVForm.OUTSIDE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [
        (name, form)
        for number, name in enumerate(MODELS)
        for form in (KVForm.AT_POSITION, FORMS[number % len(FORMS)])
    ],
)
def test_few_layers_tell_the_work_of_all(name: str, form: KVForm, tmp_path: Path) -> None:
    with planned(MODELS[name].write(tmp_path / "m.gguf"), kv_form=form) as plan:
        layers, _ = planned_shards(plan)
        assert layers == whole(plan, *plan.topology.layer_ranges)


@pytest.mark.slow
def test_a_deep_model_is_counted_in_few_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Sequence[int]] = []

    def noted(plan: ConversionPlan, indices: Sequence[int]) -> bytes:
        built.append(indices)
        return layers_model(plan, indices)

    monkeypatch.setattr("anespec.validate.cost_model.planned.layers_model", noted)
    with planned(CASES["gemma3 of 62 layers"].variant.write(tmp_path / "m.gguf")) as plan:
        planned_shards(plan)
    # Two kinds of layers: one of each, and with either twice.
    assert [len(indices) for indices in built] == [2, 3, 3]
