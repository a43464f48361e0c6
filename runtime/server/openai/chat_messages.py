"""Convert the messages of clients to messages for chat templates."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.text.conversation import SYSTEM_ROLES

MOST_MESSAGES = 4096
MOST_PARTS = 4096
"""The most content parts of a message."""

MOST_CALLS = 256
"""The most tool calls of a message."""

MOST_CHARACTERS = 1 << 22
"""The most characters of all messages together, about a million tokens."""

_KINDS: Mapping[str, str] = {
    "image_url": "an image",
    "input_image": "an image",
    "image": "an image",
    "input_audio": "audio",
    "audio": "audio",
    "video_url": "a video",
    "file": "a file",
    "input_file": "a file",
    "container_upload": "a file",
    "document": "a document",
    "search_result": "a search result",
}


_MAY_BE_EMPTY = ("assistant", "tool")
"""The roles of messages without content: an answer of reasoning alone, a tool that returned nothing."""


class ContentPart(Body):
    """A part of a message's content; only texts are supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | list[ContentPart]


class CalledFunction(Body):
    """The function of an earlier call; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCallBody(Body):
    """A tool call that the model made earlier."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class MessageBody(Body):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallBody] | None = Field(default=None, max_length=MOST_CALLS)
    tool_call_id: str | None = None

    @property
    def thought(self) -> str | None:
        """Return the message's reasoning, which clients send under either of two names."""
        return self.reasoning if self.reasoning_content is None else self.reasoning_content


def template_messages(messages: Sequence[MessageBody]) -> list[dict[str, object]]:
    """Return the messages for chat templates: contents are texts, and tool results have their tool's name.

    Raises:
        ApiError: a message has unsupported content, or the messages are too many or too large.
    """
    if not messages:
        raise ApiError(400, "messages is empty; send at least one", "invalid_value", "messages")
    names: dict[str, str] = {}
    found: list[dict[str, object]] = []
    for number, message in enumerate(messages):
        place = f"messages.{number}"
        # Templates have no developer role, which replaced the system role in OpenAI's API.
        fact: dict[str, object] = {"role": "system" if message.role == "developer" else message.role}
        fact["content"] = text_of(message.content, f"{place}.content")
        if fact["content"] is None and message.refusal is not None:
            fact["content"] = message.refusal
        if fact["content"] is None and message.role in _MAY_BE_EMPTY and not message.tool_calls:
            fact["content"] = ""
        if fact["content"] is None and not message.tool_calls:
            raise ApiError(400, f"{place} has no content", "invalid_value", f"{place}.content")
        if message.name is not None:
            fact["name"] = message.name
        if message.thought is not None:
            fact["reasoning_content"] = message.thought
        if message.tool_calls:
            fact["tool_calls"] = [call.model_dump() for call in message.tool_calls]
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.tool_call_id is not None:
            fact["tool_call_id"] = message.tool_call_id
            if message.role == "tool":
                fact.setdefault("name", names.get(message.tool_call_id))
        found.append({name: value for name, value in fact.items() if value is not None or name == "content"})
    if sum(map(_characters, messages)) > MOST_CHARACTERS:
        raise ApiError(
            400,
            f"the messages have more than {MOST_CHARACTERS} characters; send fewer",
            "context_length_exceeded",
            "messages",
        )
    return found


def after_instructions(instructions: str | None, messages: Sequence[MessageBody]) -> list[MessageBody]:
    """Return the messages, whose contents are texts, with `instructions` first.

    Leading system messages are joined to one, since most templates accept only one.
    """
    count = next((at for at, found in enumerate(messages) if found.role not in SYSTEM_ROLES), len(messages))
    said = [text for text in (instructions, *(found.content for found in messages[:count])) if text]
    system = [MessageBody(role="system", content="\n\n".join(map(str, said)))] if said else []
    return [*system, *messages[count:]]


def needed(value: str | None, place: str) -> str:
    """Return a text that a request must have. Raises ApiError, naming its `place`, if it is missing."""
    if value is None:
        raise ApiError(400, f"{place} is missing", "invalid_value", place)
    return value


def past_call(id: str, name: str, arguments: Mapping[str, object]) -> ToolCallBody:
    """Return a call that the model made earlier, from its arguments as an object."""
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCallBody(id=id, function=CalledFunction(name=name, arguments=text))


def text_of(content: Content | None, place: str) -> str | None:
    """Return the text of a content. Raises ApiError, naming its `place`, for a part that is not text."""
    if content is None or isinstance(content, str):
        return content
    if len(content) > MOST_PARTS:
        raise ApiError(400, f"{place} has more than {MOST_PARTS} parts; join some", "invalid_value", place)
    return "\n".join(part_text(part, f"{place}.{number}") for number, part in enumerate(content))


def part_text(part: ContentPart, place: str) -> str:
    """Return the text of a part; raises as `text_of` does."""
    text = part.refusal if part.type == "refusal" else part.text
    if part.type in ("text", "input_text", "output_text", "refusal") and text is not None:
        return text
    if part.type in _KINDS:
        kind = _KINDS[part.type]
        raise ApiError(
            400,
            f"{place} is {kind}, and this model reads only text; leave it out",
            "unsupported_content",
            place,
        )
    raise ApiError(
        400, f"{place} is not text; send parts of the type text, with their text", "invalid_value", place
    )


def _characters(message: MessageBody) -> int:
    contents = [message.content] if isinstance(message.content, str) else []
    if isinstance(message.content, list):
        contents = [part.text or part.refusal or "" for part in message.content]
    calls = [
        text for call in message.tool_calls or () for text in (call.function.name, call.function.arguments)
    ]
    return sum(map(len, [*contents, *calls, message.thought or ""]))
