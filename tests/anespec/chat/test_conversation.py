"""Messages and commands, without a terminal."""

import itertools
import os
import signal
from pathlib import Path

import pytest
from scripted import ScriptedModel, Seen, conversation

import anespec.cli.chat.repl as repl
from anespec.cli.chat.commands import BY_NAME, COMMANDS, Then, setting_names, take_line
from anespec.cli.chat.conversation import stopped_by_interrupt
from anespec.cli.chat.model import Messages
from anespec.cli.chat.repl import is_complete, messages_of, run_lines, run_terminal
from anespec.cli.chat.transcript import Turn
from anespec.runtime.engine.requests import FinishReason
from anespec.runtime.text.conversation import ChatPrompt
from anespec.system.errors import AnespecError, PromptTooLongError, RequestError


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_answers_and_all_else_go_apart(seen: Seen) -> None:
    chat = conversation(ScriptedModel([["Hi", " there"], ["Fine"]]), seen)
    run_lines(chat, ["Hello\n", "\n", "/stats\n", "And you?\n"])
    assert seen.answers == "Hi there\nFine\n"
    assert "1 turn\ncontext: 5 of 1000 tokens" in seen.others
    assert chat.transcript.turns == [Turn("Hello", "Hi there"), Turn("And you?", "Fine")]


def test_the_first_failure_ends_a_pipe_with_its_code(seen: Seen) -> None:
    model = ScriptedModel()
    with pytest.raises(RequestError, match="no command '/nope'"):
        run_lines(conversation(model, seen), ["/nope", "Hello"])
    assert model.seen == []


def test_exit_ends_a_pipe(seen: Seen) -> None:
    model = ScriptedModel()
    run_lines(conversation(model, seen), ["/exit", "Hello"])
    assert model.seen == []


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (["a", "b"], ["a", "b"]),
        (['"""a', "b", 'c"""', "d"], ["a\nb\nc", "d"]),
        (['"""a"""'], ["a"]),
        (['  """', "a", '"""'], ["\na\n"]),
        (['"""a', "b"], ["a\nb"]),
        (['say """a"""'], ['say """a"""']),
        (["a\r\n"], ["a"]),
    ],
)
def test_quotes_make_one_message_of_lines(lines: list[str], messages: list[str]) -> None:
    assert list(messages_of(lines)) == messages


def test_enter_sends_unless_quotes_are_open() -> None:
    assert is_complete("one")
    assert is_complete('"""one"""')
    assert not is_complete('"""one')
    assert not is_complete(' """')


def test_two_slashes_begin_a_message(seen: Seen) -> None:
    model = ScriptedModel()
    take_line(conversation(model, seen), "//help me")
    assert model.seen[0][-1]["content"] == "/help me"


def test_reasoning_is_remembered_apart(seen: Seen) -> None:
    model = ScriptedModel([["<think>hm", "</think>\n\n", "Four"]])
    chat = conversation(model, seen)
    chat.ask("2+2?")
    chat.ask("sure?")
    assert chat.transcript.turns[0] == Turn("2+2?", "Four", "hm")
    assert model.seen[1][1] == {"role": "assistant", "content": "Four", "reasoning_content": "hm"}
    assert seen.answers.startswith("<think>hm</think>\n\nFour\n")


def test_a_terminal_sees_reasoning_dimmed_and_drafts_coloured() -> None:
    seen = Seen(colours=True)
    conversation(ScriptedModel([["<think>a</think>", "b", "c"]]), seen).ask("?")
    dim, green = "\x1b[2m", "\x1b[32m"
    assert f"{dim}<think>a</think>" in seen.answers
    assert f"{green}b" in seen.answers
    assert seen.answers.endswith("c\n")


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came(seen: Seen) -> None:
    model = ScriptedModel([["one", " two", " three"]])
    presses = iter([None, signal.SIGINT, None])

    def press() -> None:
        if (number := next(presses)) is not None:
            os.kill(os.getpid(), number)

    model.during = press
    chat = conversation(model, seen, stoppable=stopped_by_interrupt)
    before = signal.getsignal(signal.SIGINT)
    chat.ask("count")
    assert chat.transcript.turns == [Turn("count", "one")]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_message_whose_answer_never_began_is_taken_back(seen: Seen) -> None:
    model = ScriptedModel([["never"]], during=lambda: os.kill(os.getpid(), signal.SIGINT))
    chat = conversation(model, seen, stoppable=stopped_by_interrupt)
    chat.ask("count")
    assert chat.transcript.turns == []
    assert "your message was removed" in seen.others


@pytest.mark.parametrize(
    ("finish", "said"),
    [
        (FinishReason.CONTEXT, "is full; --context N makes it longer"),
        (FinishReason.LENGTH, "/set max_tokens"),
    ],
)
def test_why_an_answer_ends_early_is_said(seen: Seen, finish: FinishReason, said: str) -> None:
    conversation(ScriptedModel(finish=finish), seen).ask("?")
    assert said in seen.others


def test_a_full_context_is_said_once_per_cut(seen: Seen) -> None:
    chat = conversation(ScriptedModel(context=40), seen, system="Be brief")
    for _ in range(4):
        chat.ask("five words to fill it")
    assert seen.others.count("the model no longer sees the first") == 1
    assert "/clear" in seen.others
    assert len(chat.transcript.turns) == 4


def test_what_cannot_be_asked_leaves_the_conversation_alone(seen: Seen) -> None:
    chat = conversation(ScriptedModel(context=20), seen)
    chat.ask("short")
    with pytest.raises(PromptTooLongError):
        chat.ask("long " * 30)
    assert [turn.user for turn in chat.transcript.turns] == ["short"]


def test_retry_draws_anew_and_keeps_the_old_answer_where_it_fails(seen: Seen) -> None:
    model = ScriptedModel([["old"], AnespecError("broken"), ["new"]])
    chat = conversation(model, seen)
    chat.ask("?")
    with pytest.raises(AnespecError, match="broken"):
        take_line(chat, "/retry")
    assert chat.transcript.turns == [Turn("?", "old")]
    take_line(chat, "/retry")
    assert chat.transcript.turns == [Turn("?", "new")]
    assert [attempt for _, attempt in model.asked] == [0, 1, 2]
    assert "temperature 0" in seen.others


def test_undo_system_and_clear(seen: Seen) -> None:
    model = ScriptedModel()
    chat = conversation(model, seen)
    for line in ("one", "two", "/undo", "/system Be brief", "three"):
        take_line(chat, line)
    assert [message["content"] for message in model.seen[-1]] == ["Be brief", "one", "ok", "three"]
    take_line(chat, "/clear")
    assert (chat.transcript.turns, chat.transcript.system, chat.used) == ([], "Be brief", 4)
    take_line(chat, "/system none")
    assert chat.transcript.system is None
    said = seen.others
    for nothing in ("/undo", "/retry"):
        with pytest.raises(RequestError):
            take_line(chat, nothing)
    assert seen.others == said, "what was not done is not commented on"


def test_settings_hold_from_the_next_answer_on(seen: Seen) -> None:
    model = ScriptedModel()
    chat = conversation(model, seen)
    for line in ("/set temperature 0.5", "/set max_tokens 7", "one", "/set max_tokens none", "two", "/set"):
        take_line(chat, line)
    asked = [(options.temperature, options.max_tokens) for options, _ in model.asked]
    assert asked == [(0.5, 7), (0.5, None)]
    assert all(f"{name} " in seen.others for name in setting_names())


@pytest.mark.parametrize("line", ["/set temperature hot", "/set temperature -1", "/set heat 1", "/set seed"])
def test_settings_out_of_range_are_a_sentence(seen: Seen, line: str) -> None:
    chat = conversation(ScriptedModel(), seen)
    options = chat.options
    with pytest.raises(RequestError):
        take_line(chat, line)
    assert chat.options == options


def test_saved_and_loaded_by_command(seen: Seen, tmp_path: Path) -> None:
    chat = conversation(ScriptedModel(), seen)
    for line in ("one", f"/save {tmp_path / 'a b.json'}", "/clear", f"/load {tmp_path / 'a b.json'}"):
        take_line(chat, line)
    assert chat.transcript.turns == [Turn("one", "ok")]
    for wrong in ("/save", "/load", "/load ~nobody-has-this-name/x", "/help me"):
        with pytest.raises(AnespecError):
            take_line(chat, wrong)


def test_help_names_every_command(seen: Seen) -> None:
    take_line(conversation(ScriptedModel(), seen), "/help")
    assert all(f"/{command.name}" in seen.others for command in COMMANDS)
    assert max(len(line) for line in seen.others.splitlines()) <= 80


@pytest.mark.parametrize("name", ["exit", "quit", "bye"])
def test_leaving(seen: Seen, name: str) -> None:
    assert name in BY_NAME
    assert take_line(conversation(ScriptedModel(), seen), f"/{name}") is Then.LEAVE


def test_a_terminal_goes_on_after_errors_and_ends_with_the_second_interrupt(seen: Seen) -> None:
    script: list[str | type[BaseException]] = [
        "/nope", KeyboardInterrupt, "Hello", '"""a\nb"""', KeyboardInterrupt, KeyboardInterrupt, "never",
    ]  # fmt: skip

    def read() -> str:
        item = script.pop(0)
        if isinstance(item, str):
            return item
        raise item

    model = ScriptedModel()
    run_terminal(conversation(model, seen), read)
    assert [messages[-1]["content"] for messages in model.seen] == ["Hello", "a\nb"]
    assert "error: there is no command" in seen.others
    assert script == ["never"]


def test_the_end_of_input_leaves(seen: Seen) -> None:
    def read() -> str:
        raise EOFError

    run_terminal(conversation(ScriptedModel(), seen), read)


class Interrupted(ScriptedModel):
    """^C comes while it makes a prompt, which is before its answer can be stopped."""

    def prompt(self, messages: Messages) -> ChatPrompt:
        raise KeyboardInterrupt


def test_an_interrupt_before_the_answer_ends_neither_chat_nor_conversation(seen: Seen) -> None:
    chat = conversation(Interrupted(), seen)
    chat.transcript.turns.append(Turn("earlier", "answer"))
    lines = iter(["a message", "/retry", "/exit"])
    run_terminal(chat, lambda: next(lines))
    assert seen.others.splitlines()[0] == "stopped"
    assert chat.transcript.turns == [Turn("earlier", "answer")]


@pytest.mark.parametrize("name", ["a\0b", "a" * 300])
@pytest.mark.parametrize("command", ["save", "load"])
def test_a_name_that_no_file_can_have_is_a_sentence(seen: Seen, command: str, name: str) -> None:
    with pytest.raises(AnespecError, match="name"):
        run_lines(conversation(ScriptedModel(), seen), [f"/{command} {name}"])


def test_a_message_whose_quotes_never_close_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl, "LONGEST_PROMPT", 100)
    with pytest.raises(RequestError, match="longer"):
        list(messages_of(itertools.chain(['"""'], itertools.repeat("more"))))
