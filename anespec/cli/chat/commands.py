"""Implement the slash commands of a chat."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anespec.cli.chat.conversation import Conversation
from anespec.cli.chat.rendering import context_text, first_turns_text, turns_text
from anespec.cli.chat.transcript import Transcript
from anespec.runtime.options import GenerationOptions
from anespec.system.errors import RequestError
from anespec.system.formatting import counted, listed, quoted
from anespec.system.options import type_of

if TYPE_CHECKING:
    from anespec.runtime.engine.completion import Summary


# /set: change sampling options during a conversation.

UNLIMITED = "none"

MEANINGLESS_OPTIONS = frozenset({"choices", "logprobs"})
"""Options that have no meaning in a conversation."""


def setting_names() -> tuple[str, ...]:
    """Return the names of options that can be set: those that are numbers."""
    fields = GenerationOptions.model_fields.items()
    return tuple(
        name for name, field in fields if type_of(field) in (int, float) and name not in MEANINGLESS_OPTIONS
    )


def shown(options: GenerationOptions) -> Iterator[tuple[str, str]]:
    """Yield each option that can be set, with its value."""
    for name in setting_names():
        value = getattr(options, name)
        yield name, UNLIMITED if value is None else str(value) if isinstance(value, int) else f"{value:g}"


def changed(options: GenerationOptions, name: str, text: str) -> GenerationOptions:
    """Return the options with one value changed, which is read from text.

    Raises:
        RequestError: there is no such option, or the value is out of range.
    """
    if name not in setting_names():
        raise RequestError(f"there is no option {quoted(name)}; the options are {listed(setting_names())}")
    kind, value = type_of(GenerationOptions.model_fields[name]), None
    if text != UNLIMITED:
        value = _number(kind, name, text)
    return options.with_changes(**{name: value})


def _number(kind: Any, name: str, text: str) -> float:
    try:
        number: float = kind(text)
    except (ValueError, OverflowError):
        raise RequestError(f"{quoted(text)} is not a number for {name}") from None
    return number


MARK = "/"
NO_SYSTEM = "none"


class Then(Enum):
    """The result of a line of input."""

    GO_ON = auto()
    LEAVE = auto()


class Takes(Enum):
    """The kind of a command's argument, for completion."""

    NOTHING = auto()
    TEXT = auto()
    FILE = auto()
    SETTING = auto()


@dataclass(frozen=True)
class Command:
    """A command: its name, argument, function and line of help. `run` receives the text after the name."""

    name: str
    help: str
    run: Callable[[Conversation, str], Then]
    argument: str = ""
    takes: Takes = Takes.NOTHING

    @property
    def usage(self) -> str:
        """Return the name and argument for `/help`."""
        return f"{MARK}{self.name} {self.argument}".rstrip()


def take_line(conversation: Conversation, line: str) -> Then:
    """Run a line of input: a command, or a message.

    Two slashes begin a message that starts with one slash.

    Raises:
        RequestError: there is no such command, or the command or message is not possible now.
        AnespecError: any other failure.
    """
    text = line.strip()
    if not text:
        return Then.GO_ON
    if text.startswith(MARK * 2):
        text = text[1:]
    elif text.startswith(MARK):
        return run_command(conversation, text)
    conversation.ask(text)
    return Then.GO_ON


def run_command(conversation: Conversation, text: str) -> Then:
    """Run a command, given without its slash; raises like `take_line`."""
    name, _, argument = text.removeprefix(MARK).partition(" ")
    command = BY_NAME.get(name)
    if command is None:
        raise RequestError(f"there is no command {quoted(MARK + name)}; /help lists all, // begins a message")
    if command.takes is Takes.NOTHING and argument.strip():
        raise RequestError(f"{MARK}{name} takes no argument; leave out {quoted(argument.strip())}")
    return command.run(conversation, argument.strip())


def _help(chat: Conversation, _: str) -> Then:
    width = max(len(command.usage) for command in COMMANDS)
    lines = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS]
    lines += ["", 'Several lines: Alt-Enter between them, or """ before and after.']
    lines += ["^C stops an answer, ^D exits. // begins a message that begins with a slash."]
    chat.screen.say("\n".join(lines))
    return Then.GO_ON


def _save(chat: Conversation, argument: str) -> Then:
    path = _path(argument, "save")
    chat.transcript.save(path)
    chat.screen.say(f"{turns_text(len(chat.transcript.turns))} saved to {path}")
    return Then.GO_ON


def _load(chat: Conversation, argument: str) -> Then:
    path = _path(argument, "load")
    chat.forget(Transcript.load(path))
    chat.screen.say(f"{turns_text(len(chat.transcript.turns))} loaded from {path}")
    return Then.GO_ON


def _path(argument: str, name: str) -> Path:
    if not argument:
        raise RequestError(f"{MARK}{name} needs the name of a file")
    if "\0" in argument:
        raise RequestError(f"{quoted(argument)} is not a possible file name; remove the NUL character")
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        raise RequestError(f"{quoted(argument)}: there is no such user; write the path out") from None


def _retry(chat: Conversation, _: str) -> Then:
    if not chat.transcript.turns:
        raise RequestError("there is no message to answer again; write one first")
    if chat.options.temperature == 0:
        chat.screen.note("at temperature 0 all answers are the same; /set temperature 0.7 changes that")
    chat.retry()
    return Then.GO_ON


def _undo(chat: Conversation, _: str) -> Then:
    if not chat.undo():
        raise RequestError("there is no turn to undo")
    chat.screen.say(f"last turn removed; {turns_text(len(chat.transcript.turns))} left")
    return Then.GO_ON


def _system(chat: Conversation, argument: str) -> Then:
    if argument:
        chat.transcript.system = None if argument == NO_SYSTEM else argument
    system = chat.transcript.system
    chat.screen.say("there is no system prompt" if system is None else f"system prompt: {system}")
    return Then.GO_ON


def _stats(chat: Conversation, _: str) -> Then:
    turns, forgotten = len(chat.transcript.turns), chat.transcript.forgotten
    unseen = f", and the model no longer sees {first_turns_text(forgotten)}" if forgotten else ""
    lines = [f"{turns_text(turns)}{unseen}", context_text(chat.used, chat.model.context)]
    cost = ["there was no answer since"] if chat.last is None else statistics_lines(chat.last)
    chat.screen.say("there was no answer yet" if not turns else "\n".join([*lines, *cost]))
    return Then.GO_ON


def statistics_lines(summary: "Summary") -> list[str]:
    """Return lines with the cost of the last answer."""
    statistics = summary.statistics
    computed = statistics.prompt_tokens - statistics.reused_tokens
    prompt = counted(statistics.prompt_tokens, "token")
    answer, passes = counted(len(summary.output_ids), "token"), counted(statistics.passes, "pass", "passes")
    return [
        f"prompt: {prompt}, {statistics.reused_tokens} reused, {computed} computed"
        f"{_rate(computed, statistics.prefill_seconds)}",
        f"answer: {answer} in {passes}: {statistics.decode_text()}"
        f"{_rate(statistics.decoded_tokens, statistics.decode_seconds)}",
        f"drafts: {statistics.accepted} of {statistics.proposed} accepted",
    ]


def _rate(tokens: int, seconds: float) -> str:
    return f" at {tokens / seconds:.1f} tokens/s" if seconds else ""


def _set(chat: Conversation, argument: str) -> Then:
    name, _, value = argument.partition(" ")
    if value.strip():
        chat.options = changed(chat.options, name, value.strip())
    elif name:
        raise RequestError(f"/set {name} needs a value; /set alone shows all")
    rows = [(key, text) for key, text in shown(chat.options) if name in ("", key)]
    chat.screen.say("\n".join(f"{key} {text}" for key, text in rows))
    return Then.GO_ON


def _clear(chat: Conversation, _: str) -> Then:
    chat.forget(Transcript(chat.transcript.system))
    chat.screen.say("a new conversation")
    return Then.GO_ON


def _exit(chat: Conversation, _: str) -> Then:
    return Then.LEAVE


COMMANDS = (
    Command("help", "this list", _help),
    Command("save", "write the conversation to a file", _save, "FILE", Takes.FILE),
    Command("load", "continue a conversation from a file", _load, "FILE", Takes.FILE),
    Command("retry", "answer the last message again", _retry),
    Command("undo", "remove the last message and its answer", _undo),
    Command("system", f"show or set the system prompt; {NO_SYSTEM} for none", _system, "[TEXT]", Takes.TEXT),
    Command("stats", "show the cost of the last answer, and how full the context is", _stats),
    Command("set", "show or change sampling options", _set, "[NAME VALUE]", Takes.SETTING),
    Command("clear", "start a new conversation; the system prompt stays", _clear),
    Command("exit", "leave", _exit),
)
BY_NAME = {command.name: command for command in COMMANDS} | {
    alias: Command(alias, "leave", _exit) for alias in ("quit", "bye")
}
