"""Certain rows are shared fairly, draft rows by path probability, pads do no harm."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.drafters import Draft
from anespec.runtime.passes import PoolShape, RowKind
from anespec.runtime.regions import RegionMap
from anespec.runtime.rows import chain_rows, pad_rows, share_certain, share_drafts

MAP = RegionMap((PoolShape("global", 64, None), PoolShape("local", 64, 8)), 4, context=64, regions=2)
drafts = st.lists(
    st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]), max_size=4).map(
        lambda chances: Draft((0,) * len(chances), tuple(chances))
    ),
    max_size=4,
)


@given(st.lists(st.integers(1, 30), max_size=6), st.integers(1, 20), st.integers(1, 10))
def test_everyone_gets_a_row_before_anyone_gets_two(pending: list[int], capacity: int, run: int) -> None:
    shares = share_certain(pending, capacity, run)
    assert sum(shares) == min(capacity, sum(min(count, run) for count in pending))
    assert all(0 <= share <= min(count, run) for share, count in zip(shares, pending, strict=True))
    if max(shares, default=0) > 1:
        assert min(shares) >= 1
    assert shares[:capacity] == [max(1, share) for share in shares[:capacity]]


@given(drafts, st.integers(0, 8))
def test_drafts_are_shared_so_that_most_tokens_are_expected(proposed: list[Draft], budget: int) -> None:
    def expected(shares: tuple[int, ...]) -> float:
        total = 0.0
        for draft, share in zip(proposed, shares, strict=True):
            path = 1.0
            for chance in draft.probabilities[:share]:
                path *= chance
                total += path
        return total

    shares = tuple(share_drafts(proposed, budget))
    assert sum(shares) == min(budget, sum(len(draft.tokens) for draft in proposed))
    choices = product(*(range(len(draft.tokens) + 1) for draft in proposed))
    best = max(expected(choice) for choice in choices if sum(choice) <= budget)
    assert abs(expected(shares) - best) < 1e-9


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
