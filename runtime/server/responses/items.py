"""Convert a request's input items (messages, calls, their results, reasoning) to messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.openai.chat_messages import (
    MOST_CALLS,
    CalledFunction,
    ContentPart,
    MessageBody,
    ToolCallBody,
    after_instructions,
    needed,
    text_of,
)
from anespec.runtime.text.conversation import SYSTEM_ROLES

MOST_ITEMS = 4096
STATELESS = "responses are not stored here; send the whole conversation as input"
_ROLES = (*SYSTEM_ROLES, "user", "assistant")


class InputItem(Body):
    """An input item, whose fields depend on its type; the default type is a message.

    A message has a `role` and `content`, a `function_call` a `call_id`, a `name` and `arguments`, a
    `function_call_output` a `call_id` and `output`, `reasoning` has `content` or a `summary`.
    """

    type: str = "message"
    role: str | None = None
    content: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = "{}"
    output: str | list[ContentPart] | None = None


@dataclass
class _Turn:
    """A turn of the model: reasoning, then text, then calls."""

    reasoning: str = ""
    text: str | None = None
    calls: list[ToolCallBody] = field(default_factory=list)

    def message(self) -> MessageBody:
        return MessageBody(
            role="assistant",
            content=self.text if self.text is not None or self.calls else "",
            reasoning_content=self.reasoning or None,
            tool_calls=self.calls or None,
        )


class _Reader:
    """A reader that joins items to messages."""

    def __init__(self) -> None:
        self.messages: list[MessageBody] = []
        self._turn: _Turn | None = None

    def read(self, item: InputItem, place: str) -> None:
        match item.type:
            case "message":
                self._message(item, place)
            case "reasoning":
                if self._turn is not None and (self._turn.text is not None or self._turn.calls):
                    self.close()
                self._open().reasoning += _reasoning(item, place)
            case "function_call":
                function = CalledFunction(name=needed(item.name, f"{place}.name"), arguments=item.arguments)
                call = ToolCallBody(id=needed(item.call_id, f"{place}.call_id"), function=function)
                calls = self._open().calls
                if len(calls) == MOST_CALLS:
                    raise ApiError(
                        400,
                        f"{place} is one of more than {MOST_CALLS} calls in a turn",
                        "invalid_value",
                        place,
                    )
                calls.append(call)
            case "function_call_output":
                self.close()
                text = needed(text_of(item.output, f"{place}.output"), f"{place}.output")
                id = needed(item.call_id, f"{place}.call_id")
                self.messages.append(MessageBody(role="tool", content=text, tool_call_id=id))
            case "item_reference":
                raise ApiError(
                    400, f"{place} refers to an earlier item; {STATELESS}", "unsupported_value", place
                )
            case _:
                raise ApiError(
                    400,
                    f"{place} has an unsupported type; send messages, function calls and their "
                    "outputs, and reasoning",
                    "unsupported_value",
                    f"{place}.type",
                )

    def _message(self, item: InputItem, place: str) -> None:
        text = text_of(item.content, f"{place}.content")
        match item.role:
            case "assistant":
                if self._turn is not None and (self._turn.text is not None or self._turn.calls):
                    self.close()
                self._open().text = text or ""
            case "system" | "developer" | "user" as role:
                self.close()
                content = needed(text, f"{place}.content")
                self.messages.append(MessageBody(role=role, content=content))
            case _:
                raise ApiError(
                    400, f"the role must be one of {', '.join(_ROLES)}", "invalid_value", f"{place}.role"
                )

    def _open(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def close(self) -> None:
        """End the model's turn."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None


def messages_of(instructions: str | None, items: Sequence[InputItem]) -> list[MessageBody]:
    """Return a conversation's messages, with `instructions` first.

    Raises:
        ApiError: an item is invalid or not supported.
    """
    reader = _Reader()
    for number, item in enumerate(items):
        reader.read(item, f"input.{number}")
    reader.close()
    return after_instructions(instructions, reader.messages)


def _reasoning(item: InputItem, place: str) -> str:
    """Return an item's reasoning text, or its summary; empty if another server encrypted it."""
    if isinstance(item.content, str):
        raise ApiError(400, f"{place}.content must be a list of parts", "invalid_value", f"{place}.content")
    return "\n".join(part.text or "" for part in item.content or item.summary or ())
