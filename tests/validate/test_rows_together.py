"""All rows of a layer together give what single rows give, for every family."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import row_by_row, row_logits
from slow import slow_but

from anespec.gguf.container import GGUFFile
from anespec.validate.golden import reference as module
from anespec.validate.golden import reference_parts
from anespec.validate.golden.closeness import Floats
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.reference_parts import split_rows

FAMILIES = sorted((Path(__file__).resolve().parents[1] / "data" / "families").glob("*.gguf"))
CONTEXT = 512
ROWS = 44
"""More than the sliding windows of the families that have one."""
ROUNDING = 1e-5
"""Of the largest value: fp32 sums in another order, four layers deep."""

ROUNDING_THAT_TURNS = 5e-4
"""Recurrent layers norm what they read, however small, and with it its rounding."""


@contextmanager
def opened(path: Path) -> Iterator[Reference]:
    with GGUFFile(path) as file:
        yield Reference(file, CONTEXT, resident_layers=8)


def require_same(reference: Reference, found: Floats, expected: Floats) -> None:
    assert found.shape == expected.shape
    limit = ROUNDING_THAT_TURNS if reference.facts.recurrences else ROUNDING
    assert np.abs(found - expected).max() < limit * np.abs(expected).max()


def some_ids(reference: Reference, count: int, seed: int = 5) -> list[int]:
    return [(7 * i * i + 3 * i + seed) % reference.facts.vocabulary for i in range(count)]


@pytest.mark.fast_only("ernie4_5", "olmo2", "granite", "apertus")
@pytest.mark.parametrize("path", slow_but(FAMILIES, *FAMILIES[::6]), ids=lambda path: path.stem)
def test_several_sequences_equal_single_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows and queries are cut into pieces."""
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 13)
    monkeypatch.setattr(reference_parts, "QUERIES_AT_ONCE", 7)
    with opened(path) as reference:
        windows = [some_ids(reference, ROWS), some_ids(reference, 9, 1)]
        for window, hidden in zip(windows, reference.hidden_states(windows), strict=True):
            expected = row_by_row(reference, window, range(len(window)))
            require_same(reference, hidden, expected)
            require_same(reference, reference.logits(hidden), row_logits(reference, expected))


cases = st.tuples(
    st.sampled_from(FAMILIES),
    st.lists(
        st.lists(st.integers(0, 90), min_size=1, max_size=10, unique=True).map(sorted),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 10),
)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(cases)
def test_any_positions_in_any_two_calls_equal_single_rows(case: tuple[Path, list[list[int]], int]) -> None:
    path, places, cut = case
    with opened(path) as reference:
        layers = len(reference.facts.layers)
        ids = [some_ids(reference, len(positions), number) for number, positions in enumerate(places)]
        stretches = reference.stretches(list(zip(ids, places, strict=True)))
        together = reference.embed([t for row in ids for t in row], [p for row in places for p in row])
        for index in range(layers):
            together = reference.layer(index, together, stretches)
        parts = split_rows(together, [len(positions) for positions in places])
        for row, positions, part in zip(ids, places, parts, strict=True):
            expected = row_by_row(reference, row, positions)
            require_same(reference, part, expected)
            caches, found = reference.caches(), []
            for some in (slice(0, cut), slice(cut, None)):
                if row[some]:
                    hidden = reference.embed(row[some], positions[some])
                    found.append(reference.layers(0, layers, hidden, positions[some], caches, row[some]))
            require_same(reference, np.concatenate(found), expected)


def test_some_family_has_a_window_that_is_shorter_than_the_text() -> None:
    windows = []
    for path in FAMILIES:
        with opened(path) as reference:
            windows += [attention.window for attention in reference.facts.attentions]
    assert any(window is not None and window < ROWS for window in windows)
