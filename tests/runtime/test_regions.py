"""Home slots, what a row sees, and which regions are idle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import side_by_side, toy_shape

from anespec.runtime.kv.slot_mapping import Regions, SlotMapping
from anespec.runtime.passes import KVCacheGroupShape
from anespec.system.errors import ArtifactError

windows = st.one_of(st.none(), st.integers(1, 60))


def slots(spans: tuple[range, ...]) -> list[int]:
    return [slot for span in spans for slot in span]


@given(windows, st.integers(0, 3), st.integers(0, 199))
def test_places_are_home_slots_and_the_window_before_them(
    window: int | None, region: int, position: int
) -> None:
    pool = KVCacheGroupShape("pool", 256 if window is None else 64, window)
    region_map = SlotMapping((pool,), block=4, context=200, regions=4)
    (place,) = region_map.slots(region, position)
    base, size = region * pool.region_slots, pool.region_slots
    assert place.home == base + position % size
    first = 0 if window is None else max(0, position - window + 1)
    assert slots(place.visible) == [base + p % size for p in range(first, position + 1)]
    assert len(place.visible) <= 2
    assert all(place.visible)


@pytest.mark.slow
@given(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(0, 1023), st.integers(1, 1024))
def test_regions_take_turns_by_pages_where_passes_look_at_the_first_slots(
    sequences: int, partial: bool, start: int, count: int
) -> None:
    pools = (KVCacheGroupShape("global", 1024, None), KVCacheGroupShape("ring", 512, 256))
    shape = toy_shape(context=1024, sequences=sequences, pools=pools, partial_spans=partial)
    region_map = SlotMapping.of(shape)
    for pool, pool_shape in enumerate(pools):
        size = pool_shape.region_slots
        positions = range(start, min(start + min(count, size), 1024))
        taken = set()
        for region in range(sequences):
            found = slots(region_map.slot_ranges(pool, region, positions))
            assert found == [region_map.slot(pool, region, position) for position in positions]
            assert [region_map.place(pool, slot) for slot in found] == [(region, p % size) for p in positions]
            taken.update(found)
        assert len(taken) == sequences * len(positions), "no slot is two regions'"
        if partial and positions:
            pages = max(position % size // 256 + 1 for position in positions)
            assert max(taken) < sequences * 256 * pages, "as many pages as positions take"
    if not partial:
        assert region_map.slot(0, sequences - 1, 0) == (sequences - 1) * 1024


def test_three_regions_stand_one_behind_another() -> None:
    """Sums are split at slot 1024, which would meet pages of three regions each in another place."""
    pools = (KVCacheGroupShape("global", 1024, None),)
    shape = toy_shape(context=1024, sequences=3, pools=pools, partial_spans=True)
    assert SlotMapping.of(shape).slot_ranges(0, 1, range(600)) == (range(1024, 1624),)


@given(st.integers(1, 61), st.integers(1, 4), st.integers(0, 100))
def test_the_longest_run_never_overwrites_what_its_first_row_sees(
    window: int, block: int, start: int
) -> None:
    region_map = SlotMapping((KVCacheGroupShape("local", 64, window),), block, context=300, regions=1)
    assert region_map.longest_run >= block
    run = range(start, start + region_map.longest_run)
    (first,) = region_map.slots(0, start)
    written = {region_map.slots(0, position)[0].home for position in run}
    assert len(written) == len(run)
    assert set(slots(first.visible)) & written == {first.home}
    beyond = region_map.slots(0, run.stop)[0].home
    if start >= window - 1 > 0:
        assert beyond in slots(first.visible)


@given(windows, st.integers(1, 32), st.integers(0, 3), st.integers(0, 199), st.integers(1, 199))
def test_runs_side_by_side_stay_in_their_region_and_their_pads_where_nobody_looks(
    window: int | None, widest: int, region: int, start: int, count: int
) -> None:
    """Rows, positions, pads and rings: whatever a pass writes beyond its rows is nobody's."""
    shape = toy_shape(
        t_max=widest,
        context=200,
        sequences=4,
        pools=(KVCacheGroupShape("pool", 256 if window is None else 64, window),),
    )
    shape = side_by_side(shape)
    (pool,), region_map = shape.pools, SlotMapping.of(shape)
    positions = range(start, min(start + count, 200))
    runs = list(region_map.runs(positions, widest))
    assert [position for run in runs for position in run] == [*positions]
    for run in runs:
        assert 1 <= len(run) <= widest
        homes = [region_map.slot(0, region, position) for position in run]
        assert homes == [*range(homes[0], homes[0] + len(run))]
        written = range(homes[0], homes[0] + shape.t_max)
        base = region * pool.region_slots
        assert base <= written.start and written.stop <= base + pool.region_slots
        pads = set(written) - set(homes)
        for position in (*run, run.stop):
            seen = range(region_map.first_visible(0, position), min(position + 1, run.stop))
            assert not pads & set(slots(region_map.slot_ranges(0, region, seen)))
    assert slots(region_map.all_slots(0, region)) == [*range(base, base + pool.region_slots)]


def test_a_ring_as_long_as_the_context_has_no_limit() -> None:
    assert (
        SlotMapping((KVCacheGroupShape("local", 128, 100),), block=4, context=128, regions=1).longest_run
        == 128
    )


@pytest.mark.parametrize(
    ("pool", "regions", "words"),
    [
        (KVCacheGroupShape("global", 64, None), 1, "pool global has 64 slots per sequence but needs 100"),
        (KVCacheGroupShape("local", 64, 62), 1, "pool local has 64 slots per sequence but needs 65"),
        (KVCacheGroupShape("global", 100, None), 2, "not a multiple of 64"),
    ],
)
def test_sizes_that_cannot_work_are_refused(pool: KVCacheGroupShape, regions: int, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        SlotMapping((pool,), block=4, context=100, regions=regions)


def test_idle_regions_stand_in_order_of_last_use() -> None:
    regions = Regions(3)
    assert regions.idle == (0, 1, 2)
    regions.take(1)
    regions.take(0)
    assert regions.idle == (2,)
    regions.release(1)
    regions.release(0)
    assert regions.idle == (2, 1, 0)
    with pytest.raises(ValueError, match="idle already"):
        regions.release(2)
    regions.take(2)
    with pytest.raises(ValueError, match="not in list"):
        regions.take(2)
