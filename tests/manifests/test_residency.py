"""Plans and verdicts: what is counted, what is named, and what is kept."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anespec.manifests.residency import (
    MOST_NAMED,
    Device,
    DeviceTotals,
    FunctionPlan,
    Placement,
    Plan,
    PlannedOperation,
    PlanSource,
    ResidencyFile,
    ResidencyVerdict,
    ShardComputePlan,
    ShardResidency,
    layers_by_name,
)
from anespec.manifests.verdicts import RunEnvironment

HERE = RunEnvironment(backend="coreml", library_version="9", machine="one", threads=1, artifact="aa")


def operation(
    device: Device = Device.ANE, kind: str = "add", cost: float | None = None, name: str = "a"
) -> PlannedOperation:
    return PlannedOperation(kind=kind, name=name, shapes=((1, None),), device=device, cost=cost)


def shard(*operations: PlannedOperation, refusal: str | None = None) -> ShardComputePlan:
    function = FunctionPlan(name="main", operations=operations)
    return ShardComputePlan(shard="shards/a.mlpackage", sha256="0", functions=(function,), refusal=refusal)


def verdict(source: PlanSource, *shards: ShardComputePlan) -> ResidencyVerdict:
    judged = tuple(ShardResidency.of(plan) for plan in shards)
    return ResidencyVerdict(circumstances=HERE, source=source, block=4, shards=judged)


@given(st.lists(st.tuples(st.sampled_from(Device), st.sampled_from(("conv", "add", "mul")))))
def test_every_operation_is_counted_once(pairs: list[tuple[Device, str]]) -> None:
    found = ShardResidency.of(shard(*(operation(device, kind) for device, kind in pairs)))
    for device in Device:
        expected = sum(where is device for where, _ in pairs)
        assert getattr(found.compute, device) == expected
        assert sum(getattr(part.devices, device) for part in found.kinds) == expected
        assert sum(getattr(part.devices, device) for part in found.layers) == expected
    assert found.conv.total == sum(kind == "conv" for _, kind in pairs)
    green = bool(pairs) and all(device is Device.ANE for device, _ in pairs)
    assert verdict(PlanSource.MEASURED, shard(*(operation(*pair) for pair in pairs))).passed is green


@pytest.mark.parametrize(
    ("devices", "placement"),
    [
        ((), Placement.EMPTY),
        ((Device.ANE, Device.ANE), Placement.ANE),
        ((Device.CPU, Device.CPU), Placement.CPU),
        ((Device.GPU,), Placement.GPU),
        ((Device.ANE, Device.CPU), Placement.MIXED),
        ((Device.NONE,), Placement.MIXED),
    ],
)
def test_placement_of_a_shard(devices: tuple[Device, ...], placement: Placement) -> None:
    assert DeviceTotals.of(operation(device) for device in devices).placement is placement


def test_a_refusal_outweighs_what_was_planned() -> None:
    assert ShardResidency.of(shard(operation(), refusal="no")).placement is Placement.REFUSED


def test_the_costliest_operations_off_the_neural_engine_are_named() -> None:
    many = [operation(Device.CPU, cost=i / 100, name=f"o{i}") for i in range(50)]
    found = ShardResidency.of(shard(operation(), *many))
    assert [op.name for op in found.off_ane] == [f"o{i}" for i in range(49, 49 - MOST_NAMED, -1)]
    assert found.compute.off_ane == 50


def test_without_costs_convs_are_named_first() -> None:
    found = ShardResidency.of(shard(operation(Device.CPU), operation(Device.CPU, "conv", name="c")))
    assert [op.name for op in found.off_ane] == ["c", "a"]


def test_no_shards_prove_nothing() -> None:
    assert not verdict(PlanSource.MEASURED).passed


def test_one_red_shard_makes_the_verdict_red() -> None:
    assert not verdict(PlanSource.MEASURED, shard(operation()), shard(operation(Device.CPU))).passed


def test_operations_work_towards_the_next_name_with_a_layer() -> None:
    names = ["mul_0", "layer_0_q", "add_1", "layer_0_out", "mul_2", "layer_12_q", "hidden"]
    assert layers_by_name(names) == [0, 0, 0, 0, 12, 12, 12]
    assert layers_by_name([]) == []
    assert layers_by_name(["my_layer_3_q", "layer_x_q", "layer_3"]) == [None] * 3


@pytest.mark.parametrize("first", PlanSource)
@pytest.mark.parametrize("second", PlanSource)
def test_only_a_replay_of_what_was_measured_is_not_kept(first: PlanSource, second: PlanSource) -> None:
    older, newer = verdict(first, shard(operation())), verdict(second, shard(operation(Device.CPU)))
    kept = ResidencyFile().with_verdict(older).with_verdict(newer).verdicts
    replay = (first, second) == (PlanSource.MEASURED, PlanSource.REPLAYED)
    assert kept == ((older,) if replay else (newer,))


def test_the_file_survives_json(tmp_path: Path) -> None:
    file = ResidencyFile().with_verdict(verdict(PlanSource.PREDICTED, shard(operation(Device.CPU))))
    assert ResidencyFile.model_validate_json(file.model_dump_json()) == file


def test_nonsense_is_refused() -> None:
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValidationError):
            operation(cost=bad)
    with pytest.raises(ValidationError):
        Plan(source=PlanSource.MEASURED, circumstances=HERE, block=0, shards=())
