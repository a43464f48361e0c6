"""Chat templates: from messages to the prompt that a model was trained on.

Templates are programs out of a model file, so they run in Jinja's sandbox, in a process of its own within
limits of time and memory, with the names and settings that transformers gives them
(transformers/utils/chat_template_utils.py).
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from anespec.runtime.text.template_process import TemplateProcesses
from anespec.system.errors import PromptTooLongError, RequestError
from anespec.system.options import complaint

# A conversation as the tokens that a model continues.

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


# The messages of a conversation, as chat templates read them.


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


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    bos: str,
    eos: str,
    variables: Mapping[str, object] | None = None,
    escaped_as: Mapping[str, str] | None = None,
    processes: TemplateProcesses | None = None,
) -> str:
    """The prompt for `messages` (role, content and what else the template reads).

    `bos` and `eos` are the texts of those tokens, `variables` further names for the template, such as
    `tools`. Encode the result with `parse_special`, and without `add_special` where it begins with BOS.
    The filter `escape` escapes each character that `escaped_as` names as if it were the one it maps to.
    `processes` render it; without, those that all of this program shares. Safe from several threads.

    Raises:
        RequestError: the template is not valid, refuses these messages, does something forbidden or takes
            more time, memory or characters than it may.
    """
    names = {
        "tools": None,
        "documents": None,
        **(variables or {}),
        "messages": messages,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }
    return (processes or _shared(os.getpid())).render(template, names, escaped_as)


@cache
def _shared(owner: int) -> TemplateProcesses:
    """The processes that serve the process `owner`: one that forked must not talk to its parent's."""
    return TemplateProcesses()


# Choose the turns of a conversation that stay in its prompt once the context is nearly full.

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
