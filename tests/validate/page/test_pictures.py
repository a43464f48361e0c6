"""Places in pictures, by arithmetic."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phi_like import artifact_in, phi_manifest, quality_of, residency_of, stored

from anespec.manifests.residency import DeviceTotals, KindTotals, LayerTotals, Placement, ShardResidency
from anespec.manifests.schema import StoredTensor
from anespec.validate.page.quality import view_quality
from anespec.validate.page.residency import view_residency
from anespec.validate.page.scales import EvenScale, LogScale, power, stacked
from anespec.validate.page.weights import view_weights

POSITIVE = st.floats(1e-12, 1e6)


@given(st.lists(POSITIVE, max_size=8))
def test_a_log_scale_holds_its_values_in_order(values: list[float]) -> None:
    scale = LogScale.around(values)
    places = [scale.position(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    for value in values:
        assert 10.0**scale.first <= value * 1.000001
        assert value <= 10.0**scale.last * 1.000001
    assert 2 <= len(scale.ticks) <= 10
    assert scale.ticks[0].position == 0


def test_decades_are_evenly_spaced() -> None:
    scale = LogScale(-4, 0)
    assert [scale.position(10.0**n) for n in range(-4, 1)] == [0, 25, 50, 75, 100]
    assert scale.position(0) == 0
    assert scale.position(1e9) == 100
    assert [tick.label for tick in scale.ticks] == ["10⁻⁴", "0.001", "0.01", "0.1", "1"]
    assert power(12) == "10¹²"


@given(st.lists(st.floats(-1e5, 1e5), max_size=8))
def test_an_even_scale_has_zero_in_the_middle(values: list[float]) -> None:
    scale = EvenScale.around(values)
    assert scale.position(0) == 50
    assert all(-0.001 <= scale.position(value) <= 100.001 for value in values)


@given(st.lists(st.floats(0, 1e9), max_size=9))
def test_stacked_parts_fill_the_bar(sizes: list[float]) -> None:
    parts = stacked([(size, "a", "", "") for size in sizes])
    assert len(parts) == sum(size > 0 for size in sizes)
    total = sum(sizes)
    if total > 0:
        assert sum(part.width for part in parts) == pytest.approx(100, abs=0.02)
        for part, size in zip(parts, [size for size in sizes if size], strict=True):
            assert part.width == pytest.approx(100 * size / total, abs=0.002)
    for left, right in pairwise(parts):
        assert right.start == pytest.approx(left.start + left.width, abs=0.01)


def test_kinds_and_layers_are_summed_over_shards(tmp_path) -> None:  # type: ignore[no-untyped-def]
    verdict = residency_of(artifact_in(tmp_path / "a", phi_manifest()))
    both = DeviceTotals(ane=2, gpu=1, cpu=0, none=1)
    shard = ShardResidency(
        shard="shards/a.mlpackage", placement=Placement.MIXED, compute=both, conv=both, off_ane=(),
        kinds=(KindTotals(kind="conv", devices=both),), layers=(LayerTotals(layer=0, devices=both),),
    )  # fmt: skip
    other = shard.model_copy(update={"layers": (LayerTotals(layer=None, devices=both),)})
    view = view_residency(verdict.model_copy(update={"shards": (shard, other), "findings": ()}))
    assert view.kinds[0].words == "4 ANE, 2 GPU, 2 not reported"
    assert [part.width for part in view.kinds[0].parts] == [50, 25, 25]
    assert [column.words for column in view.layers.columns] == ["2 ANE, 1 GPU, 1 not reported"] * 2
    assert view.layers.words == "1 of 1 layers have operations off the Neural Engine"
    assert (view.on_ane, view.operations) == (4, 8)


def test_the_histogram_shows_all_tokens(tmp_path) -> None:  # type: ignore[no-untyped-def]
    view = view_quality(quality_of(artifact_in(tmp_path / "a", phi_manifest())))
    assert sum(column.tokens for column in view.columns) == 400
    assert max(column.height for column in view.columns) == 100
    assert {tick.label for tick in view.ticks} & {"10⁻⁵", "10⁻⁴", "0.001"}


def test_tensors_are_gathered_by_kind() -> None:
    tensors = [
        StoredTensor.model_validate(tensor)
        for tensor in (
            stored("blk.0.ffn_down.weight", "lut4", 0.1),
            stored("output.weight", "int8-channel", 0.001),
            stored("blk.1.ffn_down.weight", "int8-channel", 0.01, fallback="too few columns"),
            stored("blk.1.attn_q.weight", "int8-block32", 0.0, lossless=True),
        )
    ]
    view = view_weights(tensors)
    assert [row.kind for row in view.rows] == ["ffn_down", "output", "attn_q"]
    down = view.rows[0]
    assert (down.worst, down.fallbacks, down.formats) == (pytest.approx(0.1), 1, "int8-channel, lut4")
    assert [dot.position for dot in down.dots] == pytest.approx([100, 50])
    assert "too few columns" in down.dots[1].title
    assert (view.lossless, view.tensors) == (1, 4)
    assert view.error == pytest.approx((0.01010100 / 4) ** 0.5)
