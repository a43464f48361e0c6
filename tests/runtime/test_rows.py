"""Scheduled rows are shared fairly, draft rows by path probability, pads do no harm."""

from hypothesis import strategies as st

from anespec.runtime.drafters import Draft
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import KVCacheGroupShape, RowKind
from anespec.runtime.rows import chain_rows, pad_rows

MAP = SlotMapping(
    (KVCacheGroupShape("global", 64, None), KVCacheGroupShape("local", 64, 8)), 4, context=64, regions=2
)
drafts = st.lists(
    st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]), max_size=4).map(
        lambda chances: Draft((0,) * len(chances), tuple(chances))
    ),
    max_size=4,
)


def test_a_chain_stands_at_consecutive_positions() -> None:
    rows = chain_rows(MAP, 1, 5, RowKind.DRAFT, [7, 8])
    assert [(row.kind, row.token, row.position) for row in rows] == [
        (RowKind.DRAFT, 7, 5),
        (RowKind.DRAFT, 8, 6),
    ]
    assert [row.slots for row in rows] == [MAP.slots(1, 5), MAP.slots(1, 6)]


def test_pads_write_nowhere_and_see_one_written_slot() -> None:
    rows = chain_rows(MAP, 1, 20, RowKind.CARRY, [7])
    pads = pad_rows(rows, 4)
    assert len(pads) == 3
    for pad in pads:
        assert pad.kind is RowKind.PAD
        assert [place.home for place in pad.slots] == [None, None]
        assert [place.visible for place in pad.slots] == [(range(84, 85),), (range(84, 85),)]
    assert pad_rows(rows * 5, 4) == []
