"""How far ahead drafts are asked for."""

import pytest

from anespec.runtime.reach import Reach, told


@pytest.mark.parametrize(
    ("guesses", "committed", "found"),
    [
        ((1, 2, 3), (1, 2, 3, 4), (3, 3)),
        ((1, 2, 3), (1, 9), (2, 1)),
        ((1, 2, 3), (1,), (1, 1)),
        ((5, 2), (1, 2), (2, 0)),
        ((), (1,), (0, 0)),
        ((1,), (), (0, 0)),
    ],
)
def test_what_is_told_of_guesses(
    guesses: tuple[int, ...], committed: tuple[int, ...], found: tuple[int, int]
) -> None:
    assert told(guesses, committed) == found


def test_reach_doubles_behind_drafts_that_were_right_and_falls_behind_wrong_ones() -> None:
    reach = Reach(3)
    seen = []
    for known, right in ((3, 3), (6, 6), (0, 0), (12, 12), (12, 5), (10, 10), (4, 0)):
        reach.learn(known, right)
        seen.append(reach.tokens)
    assert seen == [6, 12, 12, 24, 10, 20, 3]
    reach.learn(1, 1)
    assert reach.tokens == 3, "the end of a text takes nothing back"
