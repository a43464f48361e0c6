"""The three verdicts that another project measured on a Mac, predicted from the same sizes.

ane-book Exp. 26 and journal 093: one layer with int8 weights, T = 4, by one MLComputePlan each. Its graph
fused q, k and v, and gate and up; sizes, states, inputs and the bytes of weights are the same here.
"""

import pytest
from probes import BLOCK, Probe, alone, layers_of, view_of

from anespec.manifests.residency import Device, Placement, ShardResidency
from anespec.validate.residency.prediction import predict

D64 = Probe(d=64, heads=4, kv_heads=2, head_dim=16, ff=128, slots=64, layers=1)
D1024 = Probe(d=1024, heads=16, kv_heads=4, head_dim=64, ff=2048, slots=256, layers=1)
D3072 = Probe(d=3072, heads=24, kv_heads=8, head_dim=128, ff=8192, slots=512, layers=1)


@pytest.mark.parametrize(
    ("probe", "placement", "device"),
    [
        (D64, Placement.CPU, Device.CPU),
        (D1024, Placement.ANE, Device.ANE),
        (D3072, Placement.ANE, Device.ANE),
    ],
    ids=["d=64", "d=1024", "d=3072"],
)
def test_the_three_known_verdicts(probe: Probe, placement: Placement, device: Device) -> None:
    prediction = predict(alone(view_of(layers_of(probe))), "fingerprint", BLOCK)
    (plan,) = prediction.plan.shards
    found = ShardResidency.of(plan)
    assert found.placement is placement
    assert found.conv.total == 7
    assert {operation.device for operation in plan.operations} == {device}


def test_sizes_are_those_of_the_probes() -> None:
    """d=3072 was published with 100.8 MB; d=1024 has 8.9 million int8 weights, and some scales."""
    megabytes = [view_of(layers_of(probe)).weight_bytes / 1e6 for probe in (D64, D1024, D3072)]
    assert megabytes == [
        pytest.approx(0.039, abs=0.002),
        pytest.approx(8.93, abs=0.02),
        pytest.approx(100.8, abs=0.2),
    ]


def test_the_verdict_on_the_small_probe_comes_from_its_size() -> None:
    """Its state of width 16 would fail on the Neural Engine too, but the planner never gets there."""
    prediction = predict(alone(view_of(layers_of(D64))), "fingerprint", BLOCK)
    assert {rule for op in prediction.plan.shards[0].operations for rule in op.rules} == {"small-shard"}
    assert {f.rule for f in prediction.findings} == {
        "small-shard", "state-width", "state-writes", "narrow-last-axis", "int8-per-channel",
        "flexible-beside-state",
    }  # fmt: skip


def test_the_medium_probe_is_below_the_stated_floor_and_says_so() -> None:
    prediction = predict(alone(view_of(layers_of(D1024))), "fingerprint", BLOCK)
    assert [f.detail for f in prediction.findings if f.rule == "small-shard"] == [
        "one probe of about 9 MB was resident, but its source states a floor of about 14 MB"
    ]
