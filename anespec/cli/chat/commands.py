"""The commands of a chat, which begin with a slash."""

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


# The commands that change sampling options during a conversation.

UNLIMITED = "none"

FIXED = frozenset({"choices", "logprobs"})
"""Options without a meaning in a conversation."""


def setting_names() -> tuple[str, ...]:
    """Options that can be set: every option that is a number."""
    fields = GenerationOptions.model_fields.items()
    return tuple(name for name, field in fields if type_of(field) in (int, float) and name not in FIXED)


def shown(options: GenerationOptions) -> Iterator[tuple[str, str]]:
    """Every name that can be set, and its value."""
    for name in setting_names():
        value = getattr(options, name)
        yield name, UNLIMITED if value is None else str(value) if isinstance(value, int) else f"{value:g}"


def changed(options: GenerationOptions, name: str, text: str) -> GenerationOptions:
    """Options with one value read from text.

    Raises:
        RequestError: there is no such name, or the value is not in its range.
    """
    if name not in setting_names():
        raise RequestError(f"there is no {quoted(name)} to set; there are {listed(setting_names())}")
    kind, value = type_of(GenerationOptions.model_fields[name]), None
    if text != UNLIMITED:
        value = _number(kind, name, text)
    return options.with_changes(**{name: value})


def _number(kind: Any, name: str, text: str) -> float:
    try:
        number: float = kind(text)
    except (ValueError, OverflowError):
        raise RequestError(f"{quoted(text)} is no number for {name}") from None
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
    """A name, what it takes, what it does, and a line of help. `run` gets what follows the name."""

    name: str
    help: str
    run: Callable[[Conversation, str], Then]
    argument: str = ""
    takes: Takes = Takes.NOTHING

    @property
    def usage(self) -> str:
        """As `/help` shows it."""
        return f"{MARK}{self.name} {self.argument}".rstrip()


def take_line(conversation: Conversation, line: str) -> Then:
    """Do what a line says: a command, or a message. Two slashes begin a message that begins with one.

    Raises:
        RequestError: there is no such command, or it, or the message, cannot be done.
        AnespecError: what else stopped it.
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
    """Do what a command says; raises like `take_line`."""
    name, _, argument = text.removeprefix(MARK).partition(" ")
    command = BY_NAME.get(name)
    if command is None:
        raise RequestError(f"there is no command {quoted(MARK + name)}; /help lists all, // begins a message")
    if command.takes is Takes.NOTHING and argument.strip():
        raise RequestError(f"{MARK}{name} takes nothing; {quoted(argument.strip())} is too much")
    return command.run(conversation, argument.strip())


def _help(chat: Conversation, _: str) -> Then:
    width = max(len(command.usage) for command in COMMANDS)
    lines = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS]
    lines += ["", 'Several lines: Alt-Enter between them, or """ before and after.']
    lines += ["^C stops an answer, ^D leaves. // begins a message that begins with a slash."]
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
        raise RequestError(f"{MARK}{name} takes the name of a file")
    if "\0" in argument:
        raise RequestError(f"{quoted(argument)} is no name of a file; take the NUL out of it")
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        raise RequestError(f"{quoted(argument)}: there is no such user; write the path out") from None


def _retry(chat: Conversation, _: str) -> Then:
    if not chat.transcript.turns:
        raise RequestError("nothing was asked yet, so there is nothing to try again")
    if chat.options.temperature == 0:
        chat.screen.note("at temperature 0 each answer is the same; /set temperature 0.7 changes that")
    chat.retry()
    return Then.GO_ON


def _undo(chat: Conversation, _: str) -> Then:
    if not chat.undo():
        raise RequestError("there is no turn to take back")
    chat.screen.say(f"taken back; {turns_text(len(chat.transcript.turns))} left")
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
    cost = ["nothing was answered since"] if chat.last is None else statistics_lines(chat.last)
    chat.screen.say("nothing was answered yet" if not turns else "\n".join([*lines, *cost]))
    return Then.GO_ON


def statistics_lines(summary: "Summary") -> list[str]:
    """Return lines with the cost of the last answer."""
    statistics = summary.statistics
    computed = statistics.prompt_tokens - statistics.reused_tokens
    prompt = counted(statistics.prompt_tokens, "token")
    answer, passes = counted(len(summary.output_ids), "token"), counted(statistics.passes, "pass", "passes")
    return [
        f"prompt: {prompt}, {statistics.reused_tokens} kept from before, {computed} computed"
        f"{_rate(computed, statistics.prefill_seconds)}",
        f"answer: {answer} in {passes}{_rate(statistics.decoded_tokens, statistics.decode_seconds)}, "
        f"{statistics.per_pass_text('per decode pass')}",
        f"drafts: {statistics.accepted} of {statistics.proposed} right",
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
    Command("load", "go on with a conversation out of a file", _load, "FILE", Takes.FILE),
    Command("retry", "answer the last message anew", _retry),
    Command("undo", "take the last message and its answer back", _undo),
    Command("system", f"show or set the system prompt; {NO_SYSTEM} for none", _system, "[TEXT]", Takes.TEXT),
    Command("stats", "what the last answer cost, and how full the context is", _stats),
    Command("set", "show or change how answers are made", _set, "[NAME VALUE]", Takes.SETTING),
    Command("clear", "begin a new conversation; the system prompt stays", _clear),
    Command("exit", "leave", _exit),
)
BY_NAME = {command.name: command for command in COMMANDS} | {
    alias: Command(alias, "leave", _exit) for alias in ("quit", "bye")
}
