"""Validate the messages of a conversation, and drop its first turns when the prompt becomes too long."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from anespec.system.errors import PromptTooLongError, RequestError
from anespec.system.options import complaint

SYSTEM_ROLES = ("system", "developer")
"""The names of the role that instructs the model: OpenAI's API has replaced the first by the second."""

TAIL = 16
"""The number of tokens at the prompt's end whose text shows whether the template opened a tag there."""


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation's prompt in the model's template: its tokens, and the text of the last TAIL of them.

    The answer also ends before the texts `ends`. With `is_spaced`, a space at the beginning of the answer
    belongs to the template, not to its text.
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
        """Return the message for a chat template: a dictionary of the given keys."""
        return self.model_dump(mode="json", exclude_unset=True)


Conversation = Sequence[Message | Mapping[str, object]]


def read_conversation(messages: Conversation) -> tuple[Message, ...]:
    """Return the messages of a conversation after validating them.

    Raises:
        RequestError: there is no message, or one is not valid.
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


TRIM_ABOVE, TRIM_TARGET = 0.75, 0.5
"""A prompt longer than the share TRIM_ABOVE of the context loses turns until it is no longer than the share
TRIM_TARGET. So it is not cut at every turn: each cut makes the model read everything after it again."""


@dataclass(frozen=True)
class Trimmed:
    """A prompt that leaves room for an answer, and the number of first turns that it leaves out."""

    prompt: ChatPrompt
    left_out: int


def trim(prompt_after: Callable[[int], ChatPrompt], turns: int, context: int, left_out: int = 0) -> Trimmed:
    """Return the prompt with as many of the last turns as leave room for an answer.

    `prompt_after(n)` makes the prompt without the first n turns. There are `turns` turns before the question,
    and the first `left_out` were left out before. The question alone may take the whole context.

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

    prompt = fitting(left_out, TRIM_ABOVE)
    if prompt is None:
        # The time of a try grows with the conversation, which may have thousands of turns; so search by
        # halves.
        others = range(left_out + 1, turns)
        left_out += 1 + bisect_left(others, True, key=lambda turn: fitting(turn, TRIM_TARGET) is not None)
        prompt = fitting(left_out, TRIM_TARGET)
    assert prompt is not None
    return Trimmed(prompt, left_out)
