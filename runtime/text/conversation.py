"""Conversations: their messages, the tokens of their prompts, and the turns that a prompt keeps."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from anespec.system.errors import PromptTooLongError, RequestError
from anespec.system.options import complaint

TAIL = 16
"""Tokens of the prompt's end that are looked at for what a template has opened there."""


@dataclass(frozen=True)
class ChatPrompt:
    """What a conversation becomes in the model's template: its tokens, and the text of the last few.

    An answer ends before the texts `ends`, too. `is_spaced`: a space that it begins with is the template's,
    and none of its text.
    """

    ids: tuple[int, ...]
    tail: str
    ends: tuple[str, ...] = ()
    is_spaced: bool = False


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str
    content: str | tuple[dict[str, Any], ...] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None
    tool_call_id: str | None = None

    def facts(self) -> dict[str, object]:
        """It as a chat template takes it: with the keys that were given."""
        return self.model_dump(mode="json", exclude_unset=True)


Conversation = Sequence[Message | Mapping[str, object]]


def read_conversation(messages: Conversation) -> tuple[Message, ...]:
    """The messages of a conversation, checked.

    Raises:
        RequestError: there is none, or one is none that templates read.
    """
    if not messages:
        raise RequestError("the conversation is empty; give it at least one message")
    return tuple(_read(number, message) for number, message in enumerate(messages, start=1))


def _read(number: int, message: Message | Mapping[str, object]) -> Message:
    try:
        return message if isinstance(message, Message) else Message.model_validate(message)
    except ValidationError as error:
        reason = complaint(error, Message, "key")
        raise RequestError(f"message {number}: {reason}") from None


FULL, CUT = 0.75, 0.5
"""A prompt of more than the first share of the context loses turns until it has no more than the second: it
is not cut at every turn, since what the model has read is only reused up to the first change."""


@dataclass(frozen=True)
class Trimmed:
    """A prompt that leaves an answer room, and how many of the first turns it has no more."""

    prompt: ChatPrompt
    left_out: int


def trim(prompt_after: Callable[[int], ChatPrompt], turns: int, context: int, left_out: int = 0) -> Trimmed:
    """Return the prompt with as many of the last turns as leave room for an answer.

    `prompt_after` makes the one without so many of the first turns: `turns` stand before the question, of
    which `left_out` had no room before. The question alone may take the whole context.

    Raises:
        PromptTooLongError: `prompt_after` raises it for the question alone.
    """

    def fitting(first: int, share: float) -> ChatPrompt | None:
        is_alone = first == turns
        try:
            prompt = prompt_after(first)
        except PromptTooLongError:
            if is_alone:
                raise
            return None
        return prompt if is_alone or len(prompt.ids) <= share * context else None

    prompt = fitting(left_out, FULL)
    if prompt is None:
        # Each try takes as long as the conversation is, and that may have thousands of turns.
        others = range(left_out + 1, turns)
        left_out += 1 + bisect_left(others, True, key=lambda turn: fitting(turn, CUT) is not None)
        prompt = fitting(left_out, CUT)
    assert prompt is not None
    return Trimmed(prompt, left_out)
