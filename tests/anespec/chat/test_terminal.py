"""The prompt: keys, completion, history and the line below, on an emulated terminal."""

import os
import pty
import stat
import sys
import termios
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from scripted import ScriptedModel, Seen, conversation

import anespec.cli.chat.terminal as terminal
from anespec.cli.chat.commands import take_line
from anespec.cli.chat.conversation import stopped_by_interrupt
from anespec.cli.chat.rendering import status_line
from anespec.cli.chat.repl import run_terminal
from anespec.cli.chat.terminal import CommandCompleter, history, reader, toolbar
from anespec.cli.chat.transcript import Turn
from anespec.runtime.engine.statistics import RequestStats
from anespec.system.errors import AnespecError, GoldenGateError

Type = Callable[..., str]


@pytest.fixture
def type_keys() -> Iterator[Type]:
    """Types keys at a prompt; what it returns."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):

        def type_them(text: str, remembered: History | None = None) -> str:
            keys.send_text(text)
            chat = conversation(ScriptedModel(), Seen())
            return reader(chat, remembered or InMemoryHistory())()

        yield type_them


def test_enter_sends_and_alt_enter_begins_a_line(type_keys: Type) -> None:
    assert type_keys("one\x1b\rtwo\r") == "one\ntwo"


def test_enter_within_quotes_begins_a_line(type_keys: Type) -> None:
    assert type_keys('"""one\rtwo"""\r') == '"""one\ntwo"""'


def test_pasted_lines_are_one_message(type_keys: Type) -> None:
    assert type_keys("\x1b[200~one\ntwo\x1b[201~\r") == "one\ntwo"


def test_the_end_and_the_interrupt_are_heard(type_keys: Type) -> None:
    with pytest.raises(EOFError):
        type_keys("\x04")
    with pytest.raises(KeyboardInterrupt):
        type_keys("abc\x03")


def test_up_brings_back_what_was_typed(
    type_keys: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    notes: list[str] = []
    with history(True, notes.append) as remembered:
        type_keys("first\r", remembered)
    with history(True, notes.append) as remembered:
        assert type_keys("\x1b[A\r", remembered) == "first"
    path = tmp_path / "anespec" / "chat_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not notes


def test_without_history_nothing_is_written(
    type_keys: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with history(False, pytest.fail) as remembered:
        type_keys("secret\r", remembered)
    assert not list(tmp_path.iterdir())


def test_a_history_that_cannot_be_had_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "other").write_text("untouched")
    (tmp_path / "anespec").mkdir()
    (tmp_path / "anespec" / "chat_history").symlink_to(tmp_path / "other")
    notes: list[str] = []
    with history(True, notes.append) as remembered:
        remembered.append_string("typed")
    assert "is a link" in notes[0]
    assert (tmp_path / "other").read_text() == "untouched"


def test_a_long_history_loses_its_older_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(terminal, "LARGEST_HISTORY", 2000)
    for _ in range(2):
        with history(True, pytest.fail) as remembered:
            for number in range(60):
                remembered.append_string(f"message {number}")
    with history(True, pytest.fail) as remembered:
        found = list(remembered.load_history_strings())
    assert 5 < len(found) < 120
    assert found[0] == "message 59"
    assert set(found) <= {f"message {number}" for number in range(60)}


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("/st", ["stats"]),
        ("/s", ["save", "system", "stats", "set"]),
        ("/set temp", ["temperature"]),
        ("/set temperature ", []),
        ("hello /s", []),
        ("//s", []),
        ("/nope x", []),
        ("/help ", []),
    ],
)
def test_commands_and_settings_are_completed(text: str, completed: list[str]) -> None:
    found = CommandCompleter().get_completions(Document(text), CompleteEvent(completion_requested=True))
    assert [completion.text for completion in found] == completed


def test_files_are_completed(tmp_path: Path) -> None:
    (tmp_path / "talk.json").touch()
    document = Document(f"/load {tmp_path}/ta")
    found = list(CommandCompleter().get_completions(document, CompleteEvent(completion_requested=True)))
    assert [completion.text for completion in found] == ["lk.json"]


def test_the_line_below_shows_how_full_the_context_is() -> None:
    chat = conversation(ScriptedModel([["a", "b"]]), Seen())
    chat.ask("one two three")
    assert toolbar(chat).split(" · ")[1] == "context 7 of 1000 (0 %)"


def test_the_line_below_is_of_the_conversation_as_it_stands(tmp_path: Path) -> None:
    """Two tokens a message and one a word, as the scripted model counts."""
    chat = conversation(ScriptedModel([["a", "b"], ["c"]]), Seen())

    def filled() -> str:
        return toolbar(chat).split(" · ")[1].partition(" of")[0]

    assert filled() == "context 0"
    chat.ask("one two three")
    assert filled() == "context 7"
    take_line(chat, f"/save {tmp_path / 'saved'}")
    chat.ask("four")
    assert filled() == "context 12", "8 of the first turn, 3 of the question, 1 of the answer"
    take_line(chat, "/undo")
    assert filled() == "context 8"
    assert chat.last is None, "what was taken back has no speed to show"
    take_line(chat, "/system be brief")
    assert filled() == "context 12"
    take_line(chat, "/clear")
    assert filled() == "context 4"
    take_line(chat, f"/load {tmp_path / 'saved'}")
    assert filled() == "context 8"
    take_line(chat, "/stats")
    assert filled() == "context 8"


def test_a_conversation_longer_than_the_context_fills_it(tmp_path: Path) -> None:
    chat = conversation(ScriptedModel([["a"] * 30], context=30), Seen())
    chat.transcript.turns.append(Turn("word " * 100, "answer"))
    assert "context 30 of 30 (100 %)" in toolbar(chat)


@pytest.mark.parametrize(("remembered", "said"), [(0, "3.00 per pass"), (7, "3.00 per pass from memory")])
def test_a_replay_out_of_memory_is_called_that(remembered: int, said: str) -> None:
    chat = conversation(ScriptedModel([["a"]]), Seen())
    chat.ask("one")
    assert chat.last is not None
    cost = RequestStats(
        prompt_tokens=3, decode_passes=4, decoded_tokens=12, decode_seconds=2.0, remembered_tokens=remembered,
        proposed_by_position=(4, 4), accepted_by_position=(4, 4),
    )  # fmt: skip
    chat.last = replace(chat.last, statistics=cost)
    assert f"6.0 tokens/s, {said}" in toolbar(chat)


@pytest.mark.parametrize("columns", [0, 1, 10, 40, 80, 200])
def test_the_line_below_fits(columns: int) -> None:
    line = status_line(
        "a model\x1b[31m with a name that is long",
        10,
        2048,
        None,
        ["25.0 tokens/s", "3.10 per pass"],
        columns,
    )
    assert len(line) <= max(columns, 2)
    assert "\x1b" not in line
    if columns >= 40:
        assert "context 10 of 2048" in line


def test_the_line_says_how_far_the_gates_are() -> None:
    chat = conversation(ScriptedModel(checking="3 of 11"), Seen())
    assert " · checking: 3 of 11 · " in toolbar(chat)
    chat = conversation(ScriptedModel(), Seen())
    assert "checking" not in toolbar(chat)


def test_checking_stays_in_80_columns_once_an_answer_came() -> None:
    speed = ["105.3 tokens/s", "1.00 per pass"]
    line = status_line("stories260K.Q8_0", 1234, 40960, "3 of 12", speed, 80)
    assert line == " stories260K.Q8_0 · context 1234 of 40960 (3 %) · checking: 3 of 12 "
    line = status_line("stories260K.Q8_0", 12, 512, "3 of 12", speed, 81)
    assert line == " stories260K.Q8_0 · context 12 of 512 (2 %) · checking: 3 of 12 · 105.3 tokens/s "
    line = status_line("stories260K.Q8_0", 12, 512, None, speed, 80)
    assert line.endswith(" · 105.3 tokens/s, 1.00 per pass ")
    assert status_line("tiny", 1, 512, "3 of 12", speed, 48) == " context 1 of 512 (0 %) · checking: 3 of 12 "


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ([" nle", " x"], "nle x"),
        ([" ", "nle"], "nle"),
        (["   ", "return"], "   return"),
        ([" ", " a"], "  a"),
    ],
)
def test_a_space_before_the_first_word_is_not_shown(answer: list[str], shown: str) -> None:
    seen = Seen()
    chat = conversation(ScriptedModel([answer, answer]), seen)
    chat.ask("one")
    chat.ask("two")
    assert seen.answers.splitlines() == [shown, shown]
    assert chat.transcript.turns[0].answer == "".join(answer)


def test_the_terminal_prints_no_interrupt_into_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, keyboard = pty.openpty()

    def echoes() -> bool:
        return bool(termios.tcgetattr(keyboard)[3] & termios.ECHOCTL)

    with os.fdopen(keyboard) as stdin, os.fdopen(controller):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert echoes()
        with stopped_by_interrupt(lambda: None):
            assert not echoes()
        assert echoes()


def test_a_chat_ends_where_its_model_is_found_wrong() -> None:
    """Before the next message is asked for, and in the midst of an answer; other failures do not end it."""
    wrong = GoldenGateError("it computes something else")
    model = ScriptedModel([AnespecError("not now"), AnespecError("it failed")])
    chat = conversation(model, Seen())
    lines = iter(["one", "two", "three"])

    def read() -> str:
        line = next(lines)
        if line == "two":
            model.failure = wrong
        return line

    with pytest.raises(GoldenGateError, match="something else"):
        run_terminal(chat, read)
    assert next(lines) == "three"
    with pytest.raises(GoldenGateError, match="something else"):
        run_terminal(chat, read)
