"""How sizes and texts from outside are written for people."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.system.formatting import (
    bytes_text,
    counted,
    duration_text,
    listed,
    printable,
    quoted,
    sanitize_terminal,
    short_path,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_015_800_000, "2.02 GB"), (10**13, "10000.00 GB")],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


@given(text=st.text(max_size=300), limit=st.integers(1, 100))
def test_a_text_from_outside_is_one_printable_line_of_bounded_length(text: str, limit: int) -> None:
    for shown in (quoted(text, limit), printable(text, limit)):
        assert shown.isprintable()
        assert len(shown) <= 10 * limit + 3


@given(st.text(max_size=300))
def test_a_harmless_text_commands_no_terminal_and_stays_otherwise(text: str) -> None:
    shown = sanitize_terminal(text)
    assert not {unicodedata.category(c) for c in shown if c not in "\n\t"} & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(c) for c in shown} & {"LRE", "RLE", "LRO", "RLO", "LRI", "RLI"}
    if text.isprintable():
        assert shown == text
    assert sanitize_terminal(shown) == shown


def test_ordinary_texts_stay_as_they_are() -> None:
    assert printable("Zażółć [bold] 'it'") == "Zażółć [bold] 'it'"
    assert quoted("a\nb") == r"'a\nb'"
    assert printable("\x1b[2J") == r"\x1b[2J"
    assert quoted("x" * 90, 10) == "'xxxxxxxxxx…'"


def test_counts_and_lists_read_as_sentences_do() -> None:
    assert [counted(n, "token") for n in (0, 1, 2)] == ["0 tokens", "1 token", "2 tokens"]
    assert [counted(n, "pass", "passes") for n in (1, 3)] == ["1 pass", "3 passes"]
    assert [listed(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert listed(["a", "b"], "or") == "a or b"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.1, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), 
        (59.6, "1 min 0 s"), (200, "3 min 20 s"), (3599.6, "1 h 0 min"), (7500, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_path_below_home_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert short_path(tmp_path / ".cache" / "models") == "~/.cache/models"
    assert short_path(Path("/srv/models")) == "/srv/models"
    assert short_path(Path("models")) == "models"
