"""What verbs say: texts out of files command no terminal, whatever they hold."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from rich.table import Table
from rich.text import Text

from anespec.cli.console import byte_progress, notes, out, step_progress, timed_progress

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
    monkeypatch.setattr("anespec.cli.console.time", SimpleNamespace(monotonic=lambda: next(clock)))
    with timed_progress("golden gate", shown=True) as report:
        report("opening", 0.005)
        report("layer 1", 0.5)
    assert stream.getvalue().splitlines() == [
        "golden gate: running",
        "golden gate: opening, after 40 s",
        "golden gate: layer 1, after 1 min 0 s, about 1 min 0 s left",
    ]


def test_results_on_the_way_leave_no_piece_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    with timed_progress("self-test", shown=True) as report:
        report("cpu", 0.5)
        report.results.print("cpu: ok")
    # What is erased goes with it; what then stays on any line beside the result would be seen.
    lines = [line.rpartition("\x1b[2K")[2] for line in re.split(r"[\r\n]+", screen.getvalue())]
    (seen,) = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines if "cpu: ok" in line]
    assert seen.strip() == "cpu: ok"


def test_results_go_to_a_file_while_the_bar_goes_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result, screen = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", result)
    monkeypatch.setattr(sys, "stderr", screen)
    with timed_progress("self-test", shown=True) as report:
        report.results.print("cpu: ok")
        report.notes.print("note: one")
    assert result.getvalue() == "cpu: ok\n"
    assert "note: one" in screen.getvalue()


@pytest.mark.parametrize("done", [0, 4_712_345_678])
def test_the_progress_of_a_conversion_fits_one_line_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with byte_progress("converting", 4_712_345_678, shown=True) as report:
        report("layers_00_19 done", done)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "4.71 GB" in shown
    assert max(map(len, re.split(r"[\r\n]+", shown))) <= 80


@pytest.mark.parametrize(
    ("title", "note"),
    [("checking", "0 of 12, exactness (^C stops it)"), ("golden gate", "prompt 2 of 3, 31 of 47 tokens")],
)
def test_what_a_gate_does_is_not_cut_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, title: str, note: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with timed_progress(title, shown=True) as report:
        report(note, 0.25)
    assert f"{title}: {note}" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


def test_work_of_unknown_length_shows_its_time_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with step_progress("loading", shown=True) as report:
        report("a/very/long/path" * 8)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", seen) if "very/long" in line]
    assert lines
    assert all(len(line) <= 80 and line.rstrip().endswith(" s") for line in lines)


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
