"""A model that answers by script, and a screen that is read as text."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from anespec.cli.chat.conversation import Conversation, Stoppable, stopped_by_nothing
from anespec.cli.chat.model import Answer, Messages
from anespec.cli.chat.rendering import Screen
from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.engine.requests import FinishReason, OutputToken
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.options import GenerationOptions
from anespec.runtime.passes import RowKind
from anespec.runtime.text.conversation import ChatPrompt
from anespec.system.errors import GoldenGateError, PromptTooLongError


class ScriptedAnswer:
    """Chunks of a script; `during` is called before each."""

    def __init__(
        self, prompt: ChatPrompt, texts: Sequence[str], finish: FinishReason, during: Callable[[], None]
    ) -> None:
        self.prompt, self.texts, self.finish, self.during = prompt, texts, finish, during
        self.given: list[str] = []

    def __iter__(self) -> Iterator[Chunk]:
        for text in self.texts:
            self.during()
            if self.finish is FinishReason.CANCELLED:
                return
            self.given.append(text)
            yield Chunk(text, _token(len(self.given)))

    def cancel(self) -> None:
        self.finish = FinishReason.CANCELLED

    @property
    def summary(self) -> Summary:
        tokens = tuple(_token(number) for number in range(len(self.given)))
        statistics = RequestStats(prompt_tokens=len(self.prompt.ids))
        return Summary(self.prompt.ids, tokens, "".join(self.given), self.finish, statistics)


def _token(number: int) -> OutputToken:
    """Every second token was drafted."""
    return OutputToken(number, RowKind.CARRY if number % 2 else RowKind.DRAFT)


@dataclass
class ScriptedModel:
    """A ChatModel whose tokens are words, two more for each message. It gives `answers` in order."""

    answers: list[Sequence[str] | Exception] = field(default_factory=list)
    context: int = 1000
    finish: FinishReason = FinishReason.STOP
    tail: str = ""
    name: str = "scripted"
    during: Callable[[], None] = lambda: None
    seen: list[Messages] = field(default_factory=list)
    asked: list[tuple[GenerationOptions, int]] = field(default_factory=list)
    checking: str | None = None
    failure: GoldenGateError | None = None

    def require_right(self) -> None:
        if self.failure is not None:
            raise self.failure

    def prompt(self, messages: Messages) -> ChatPrompt:
        words = [word for message in messages for word in str(message["content"]).split()]
        count = len(words) + 2 * len(messages)
        if count > self.context:
            raise PromptTooLongError(f"{count} are too many")
        self.last_messages = list(messages)
        return ChatPrompt(tuple(range(count)), self.tail)

    def answer(self, prompt: ChatPrompt, options: GenerationOptions, attempt: int) -> Answer:
        self.seen.append(self.last_messages)
        self.asked.append((options, attempt))
        script = self.answers.pop(0) if self.answers else ["ok"]
        if isinstance(script, Exception):
            raise script
        return ScriptedAnswer(prompt, script, self.finish, self.during)


class Seen:
    """What a screen shows: answers and all else apart; `colours` as a terminal of 80 columns has them."""

    def __init__(self, colours: bool = False) -> None:
        self._answers, self._others = io.StringIO(), io.StringIO()

        def console(file: io.StringIO) -> Console:
            return Console(
                file=file, force_terminal=colours, no_color=not colours, width=80, soft_wrap=True,
                highlight=False, markup=False, color_system="standard" if colours else None,
            )  # fmt: skip

        self.screen = Screen(console(self._answers), console(self._others), console(self._others))

    @property
    def answers(self) -> str:
        return self._answers.getvalue()

    @property
    def others(self) -> str:
        return self._others.getvalue()


def conversation(
    model: ScriptedModel, seen: Seen, system: str | None = None, stoppable: Stoppable = stopped_by_nothing
) -> Conversation:
    """A conversation with the model, shown on `seen`."""
    return Conversation(model, seen.screen, GenerationOptions(max_tokens=None), system, stoppable)
