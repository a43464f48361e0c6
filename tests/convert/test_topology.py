"""How layers and the vocabulary are cut into shards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.convert.topology import (
    CPU_SHARD_BYTES,
    HEAD_CHANNELS,
    MAC_SHARD_BYTES,
    Topology,
    plan_topology,
)
from anespec.manifests.errors import RequestError
from anespec.manifests.schema import Target

LIMITS = {Target.MAC: MAC_SHARD_BYTES, Target.CPU: CPU_SHARD_BYTES}


@given(
    layers=st.integers(1, 200),
    layer_bytes=st.integers(0, 3 * MAC_SHARD_BYTES),
    vocabulary=st.integers(1, 300_000),
    target=st.sampled_from(Target),
)
def test_the_plan_covers_everything_once_evenly_and_within_limits(
    layers: int, layer_bytes: int, vocabulary: int, target: Target
) -> None:
    plan = plan_topology(layers, layer_bytes, vocabulary, target)
    assert [i for shard in plan.layer_ranges for i in shard] == list(range(layers))
    assert max(plan.layers) - min(plan.layers) <= 1
    fits = LIMITS[target]
    assert max(plan.layers) == 1 or max(plan.layers) * layer_bytes <= fits
    fewer = len(plan.layers) - 1
    assert fewer == 0 or -(-layers // fewer) * layer_bytes > fits, "fewer shards would have done"

    assert plan.heads[0].start == 0
    assert plan.heads[-1].stop == vocabulary
    assert all(a.stop == b.start for a, b in zip(plan.heads, plan.heads[1:], strict=False))
    widths = [len(tokens) for tokens in plan.heads]
    assert max(widths) - min(widths) <= 1
    assert max(widths) <= HEAD_CHANNELS
    assert len(widths) == -(-vocabulary // HEAD_CHANNELS)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=8), data=st.data())
def test_overrides_are_taken_as_they_are(counts: list[int], data: st.DataObject) -> None:
    vocabulary = data.draw(st.integers(1, 1000))
    heads = data.draw(st.integers(1, vocabulary))
    plan = plan_topology(sum(counts), 1 << 40, vocabulary, Target.MAC, tuple(counts), heads)
    assert plan.layers == tuple(counts)
    assert len(plan.heads) == heads
    assert [len(shard) for shard in plan.layer_ranges] == counts


@pytest.mark.parametrize("override", [(2, 2), (3, 3), (6, -1), (5, 0), ()])
def test_an_override_that_does_not_fit_is_refused(override: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"--topology .*the model has 5 layers"):
        plan_topology(5, 1, 100, Target.CPU, override)


@pytest.mark.parametrize("head_shards", [0, -1, 101])
def test_impossible_head_shards_are_refused(head_shards: int) -> None:
    with pytest.raises(RequestError, match=f"--head-shards {head_shards} is not between 1 and"):
        plan_topology(5, 1, 100, Target.CPU, head_shards=head_shards)


def test_a_topology_reads_like_the_option() -> None:
    assert str(Topology((20, 4, 6, 2), (range(3),))) == "20+4+6+2"
