"""What verbs say: texts out of files command no terminal, whatever they hold."""

import io
import sys

import pytest
from rich.table import Table
from rich.text import Text

from anespec.console import notes, out, timed_progress

HOSTILE = "[bold]x[/nope]\x1b[2J\x1b]0;title\x07\u202egpj.exe"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("place", ["stdout", "stderr"])
def test_names_out_of_files_are_shown_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, place: str, terminal: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, place, stream)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    table = Table("name")
    table.add_row(HOSTILE, style="red")
    console = out() if place == "stdout" else notes()
    console.print(table)
    console.print(f"note: {HOSTILE}", style="yellow")
    console.print("a\tb\nc  Zażółć 日本語 👩‍👩‍👧")
    shown = stream.getvalue()
    assert "\x1b[2J" not in shown
    assert "\x1b]" not in shown
    assert "\u202e" not in shown
    assert ("\x1b[" in shown) is terminal
    assert r"\x1b[2J" in shown
    assert "[bold]x[/nope]" in shown
    assert "Zażółć 日本語 👩‍👩‍👧" in shown


def test_a_long_run_says_what_is_left_once_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), iter((0.0, 40.0, 60.0))
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("anespec.console.time.monotonic", lambda: next(clock))
    with timed_progress("golden gate", shown=True) as report:
        report("opening", 0.005)
        report("layer 1", 0.5)
    assert stream.getvalue().splitlines() == [
        "golden gate: running",
        "golden gate: opening, after 40 s",
        "golden gate: layer 1, after 1 min 0 s, about 1 min 0 s left",
    ]


def test_a_terminal_gets_sentences_that_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    path = "/a/very/long/path/that/stays/whole"
    sentence = f"the report is written to {path}"
    for forced, shown in (("", f"{sentence}\n"), ("1", f"the report is\nwritten to\n{path}\n")):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("FORCE_COLOR", forced)
        out().print(sentence)
        assert stream.getvalue() == shown


def test_what_a_model_writes_is_broken_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    for part in ("it goes on and on ", "and on"):
        out().print(Text(part), end="")
    assert stream.getvalue() == "it goes on and on and on"
