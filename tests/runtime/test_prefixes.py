"""Which region a prompt takes, and what of it is there already."""

from anespec.runtime.kv.prefixes import Admission, Prefixes, SlotCopy
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import KVCacheGroupShape

GLOBAL = KVCacheGroupShape("global", 128, None)
RING = KVCacheGroupShape("local", 64, 10)


def prefixes(*held: list[int], pools: tuple[KVCacheGroupShape, ...] = (GLOBAL,)) -> Prefixes:
    """Regions that hold these tokens, written without drafts."""
    found = Prefixes(SlotMapping(pools, block=4, context=128, regions=len(held)))
    for region, tokens in enumerate(held):
        found.begin(Admission(region, 0), tokens)
        found.will_write(region, len(tokens))
        found.extend(region, tokens)
    return found


def test_the_last_prompt_token_is_always_run() -> None:
    found = prefixes([1, 2, 3, 4])
    assert found.reusable(0, [1, 2, 3, 4]) == 3
    assert found.reusable(0, [1, 2, 3, 4, 5]) == 4
    assert found.reusable(0, [1]) == 0
    assert found.reusable(0, [2, 2, 3]) == 0


def test_the_longest_prefix_is_continued_in_place() -> None:
    found = prefixes([1, 2], [1, 2, 3, 4], [1, 2, 3])
    assert found.choose([1, 2, 3, 4, 5], idle=[0, 1, 2]) == Admission(1, 4)
    found.begin(Admission(1, 4), [1, 2, 3, 4, 5])
    assert found.tokens(1) == (1, 2, 3, 4)


def test_of_equal_prefixes_the_region_with_the_least_to_lose_is_taken() -> None:
    found = prefixes([1, 2, 3, 9], [1, 2, 3], [1, 2, 3, 8, 8])
    assert found.choose([1, 2, 3, 4], idle=[0, 1, 2]).region == 1


def test_without_a_prefix_the_least_recently_used_region_is_taken() -> None:
    assert prefixes([1], [2], [5]).choose([3, 4], idle=[1, 2, 0]) == Admission(1, 0)


def test_the_lowest_region_that_holds_nothing_is_taken_first() -> None:
    assert prefixes([1], [], [2], []).choose([3, 4], idle=[2, 3, 1]) == Admission(1, 0)


def test_a_region_worth_keeping_gives_its_prefix_to_the_least_recently_used() -> None:
    found = prefixes([1, 2, *range(20, 50)], [7, 7, 7])
    admission = found.choose([1, 2, 3], idle=[1, 0])
    assert admission == Admission(1, 2, (SlotCopy(0, 0, 128, 2),), source=0)
    found.begin(admission, [1, 2, 3])
    assert found.tokens(1) == (1, 2)
    assert len(found.tokens(0)) == 32


def test_it_is_given_up_when_it_is_the_least_recently_used_itself() -> None:
    found = prefixes([1, 2, *range(20, 50)], [7, 7, 7])
    assert found.choose([1, 2, 3], idle=[0, 1]) == Admission(0, 2)


def test_a_busy_region_gives_its_prefix() -> None:
    assert prefixes([1, 2, 3], [9]).choose([1, 2, 3, 4], idle=[1]) == Admission(
        1, 3, (SlotCopy(0, 0, 128, 3),), source=0
    )


def test_of_a_ring_only_the_window_is_copied_in_two_pieces_where_it_wraps() -> None:
    tokens = list(range(68))
    found = prefixes(tokens, [], pools=(GLOBAL, RING))
    admission = found.choose([*tokens, 1], idle=[1])
    assert admission.copies == (SlotCopy(0, 0, 128, 68), SlotCopy(1, 59, 123, 5), SlotCopy(1, 0, 64, 4))
    found.begin(admission, [*tokens, 1])
    assert found.reusable(1, [*tokens, 2]) == 68
    assert found.reusable(1, tokens) == 0


def test_a_ring_that_moved_on_cannot_be_reused_not_even_after_a_rejected_draft() -> None:
    stem = list(range(40))
    found = prefixes(stem, pools=(RING,))
    found.will_write(0, 31 + 64)
    assert found.reusable(0, [*stem, 1]) == 40
    found.will_write(0, 32 + 64)
    assert found.reusable(0, [*stem, 1]) == 0
    found.begin(Admission(0, 0), stem)
    found.will_write(0, 40)
    found.extend(0, stem)
    assert found.reusable(0, [*stem, 1]) == 40


CHUNKED = (
    KVCacheGroupShape("global", 128, None),
    KVCacheGroupShape("chunk", 8, None, is_chunk=True),
)


def chunked(*held: tuple[int, int]) -> Prefixes:
    """Regions of a hybrid that hold so many tokens from 0 on, and whose carried state stands there."""
    found = Prefixes(SlotMapping(CHUNKED, block=4, context=100, regions=len(held)))
    for region, (count, stands) in enumerate(held):
        found.begin(Admission(region, 0), range(count))
        found.extend(region, range(count))
        found.folded(region, 1, stands)
    return found


def test_a_prefix_that_ends_before_the_carried_state_is_of_no_use() -> None:
    assert [chunked((20, 16)).reusable(0, [*range(count), 99]) for count in (7, 15, 16, 17, 20)] == [
        0,
        0,
        16,
        17,
        20,
    ]
    assert chunked((16, 8)).reusable(0, [*range(16), 99]) == 16
    assert chunked((16, 16)).reusable(0, range(16)) == 0


def test_a_chunk_is_copied_with_where_its_state_stands() -> None:
    """Also a whole one that is not folded yet: it is folded where it is copied to."""
    for count, stands, copied in ((20, 16, 4), (16, 8, 8), (16, 16, 0)):
        found = chunked((count, stands), (0, 0))
        admission = found.choose([*range(count), 99], idle=[1])
        copies = (SlotCopy(0, 0, 128, count), *([SlotCopy(1, 0, 8, copied)] if copied else []))
        assert admission == Admission(1, count, copies, source=0)
        found.begin(admission, [*range(count), 99])
        assert found.held_from(1, 1) == stands


def test_what_a_region_lost_is_nobodys() -> None:
    found = chunked((20, 16))
    found.lose(0)
    assert (found.tokens(0), found.held_from(0, 1)) == ((), 0)
