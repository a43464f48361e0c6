"""The copy pointer finds what is being copied, and goes on after a miss."""

from collections.abc import Sequence

import numpy as np

from anespec.runtime.drafters.mix.source import TextTables
from anespec.runtime.drafters.mix.state import AT, LENGTH, RUN
from anespec.runtime.drafters.mix.traits import no_traits

SOURCE = list(range(100, 160))


def pointed_at(prompt: Sequence[int], answer: Sequence[int]) -> list[int | None]:
    """The token that is pointed at behind each token of the answer."""
    tables = TextTables(no_traits(), prompt, ())
    found: list[int | None] = []
    for token in answer:
        tables.make_room(1)
        tables.text.append([token])
        tables.index(tables.text.length)
        at = int(tables.state[AT])
        assert at < tables.state[LENGTH] == tables.text.length
        found.append(int(tables.text.tokens[at]) if at >= 0 else None)
    return found


def test_it_copies_after_three_tokens() -> None:
    found = pointed_at(SOURCE, SOURCE[10:20])
    assert found[2:] == SOURCE[13:21]
    assert found[:2] == [None, None]


def test_it_survives_a_token_that_is_replaced() -> None:
    answer = [*SOURCE[10:20], 7, *SOURCE[21:26]]
    assert pointed_at(SOURCE, answer)[10:] == [SOURCE[21], *SOURCE[22:27]]


def test_it_survives_a_token_that_is_put_in() -> None:
    answer = [*SOURCE[10:20], 7, *SOURCE[20:26]]
    assert pointed_at(SOURCE, answer)[11:] == SOURCE[21:27]


def test_it_survives_tokens_that_are_left_out() -> None:
    answer = [*SOURCE[10:20], *SOURCE[24:30]]
    assert pointed_at(SOURCE, answer)[10:] == SOURCE[25:31]


def test_it_is_dropped_where_nothing_is_copied_any_more() -> None:
    answer = [*SOURCE[10:20], *range(500, 540)]
    assert pointed_at(SOURCE, answer)[-1] is None


def test_it_is_aimed_at_a_longer_match_that_is_more_recent() -> None:
    prompt = [*SOURCE[:20], 1, 2, *SOURCE[5:12], 9, 3, 4]
    assert pointed_at(prompt, SOURCE[5:12])[-1] == 9


def test_a_run_is_as_long_as_what_was_copied() -> None:
    tables = TextTables(no_traits(), SOURCE, ())
    tables.text.append(SOURCE[10:20])
    tables.index(tables.text.length)
    assert tables.state[RUN] == 10


def test_any_text_keeps_it_inside() -> None:
    """Of four tokens, so that much is copied by chance and then is not; `pointed_at` checks each place."""
    drawn = np.random.default_rng(5)
    for _ in range(20):
        text = drawn.integers(0, 4, 200).tolist()
        found = pointed_at(text[:50], text[50:])
        assert len(found) == 150
        assert set(text) | {None} >= set(found) != {None}
