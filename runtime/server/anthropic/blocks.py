"""Convert the messages of a request, which are lists of content blocks, to those of a chat."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.openai.chat_messages import (
    MOST_CALLS,
    MOST_MESSAGES,
    MOST_PARTS,
    ContentPart,
    MessageBody,
    ToolCallBody,
    after_instructions,
    needed,
    part_text,
    past_call,
    text_of,
)
from anespec.system.formatting import quoted

_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""The line for Anthropic's accounts with which Claude Code begins its system prompt. It differs in each
request, so no request could reuse the K and V of an earlier one."""


def _as_text(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[
    Annotated[list[ContentPart], Field(max_length=MOST_PARTS)],
    BeforeValidator(_as_text, json_schema_input_type=str | list[ContentPart]),
]
"""A text, or blocks of text."""


def _as_parts(value: Any) -> Any:
    """Make a list of a content that is an object, as some results of Anthropic's tools are, which are refused
    by their type."""
    return [value] if isinstance(value, dict) else _as_text(value)


class Block(Body):
    """A content block, whose fields depend on its type.

    `text` has a text, `thinking` the model's reasoning, `tool_use` an `id`, a `name` and `input`, and
    `tool_result` a `tool_use_id`, `content` and `is_error`.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Annotated[
        Annotated[list[ContentPart], Field(max_length=MOST_PARTS)] | None,
        BeforeValidator(_as_parts, json_schema_input_type=str | list[ContentPart] | None),
    ] = None
    is_error: bool | None = None


class InputMessage(Body):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[list[Block], Field(max_length=MOST_PARTS)],
        BeforeValidator(_as_text, json_schema_input_type=str | list[Block]),
    ]

    def placed(self, place: str) -> Iterator[tuple[str, Block]]:
        """Yield the blocks with their places in the request.

        Raises:
            ApiError: there are none, although the message is not the model's.
        """
        place = f"{place}.content"
        # The model may have ended its turn at once.
        if not self.content and self.role != "assistant":
            raise ApiError(400, f"{place} is empty; send at least one block", "invalid_value", place)
        for number, block in enumerate(self.content):
            yield f"{place}.{number}", block


_Placed = Sequence[tuple[str, Block]]


def messages_of(system: Sequence[ContentPart], messages: Sequence[InputMessage]) -> list[MessageBody]:
    """Return a request's conversation as messages of a chat.

    Consecutive messages of a role are one turn, as in Anthropic's API, and a tool result is a message.

    Raises:
        ApiError: a block is invalid or not supported, or there are too many.
    """
    found: list[MessageBody] = []
    for role, turn in groupby(enumerate(messages), key=lambda each: each[1].role):
        blocks = [block for number, message in turn for block in message.placed(f"messages.{number}")]
        match role:
            case "user":
                found += _asked(blocks)
            case "assistant":
                found.append(_answered(blocks))
            case "system":
                found.append(MessageBody(role="system", content=_joined(blocks)))
    if len(found) > MOST_MESSAGES:
        raise ApiError(
            400,
            f"messages has more than {MOST_MESSAGES} turns and tool results; send fewer",
            "invalid_value",
            "messages",
        )
    return after_instructions(_instructions(system), found)


def _instructions(system: Sequence[ContentPart]) -> str | None:
    texts = [_BILLING.sub("", part_text(part, f"system.{at}")) for at, part in enumerate(system)]
    return "\n".join(filter(None, texts)) or None


def _asked(blocks: _Placed) -> Iterator[MessageBody]:
    """Yield the messages of a user's turn: its texts, and the results of tools, in their order."""
    for is_result, run in groupby(blocks, key=lambda each: each[1].type == "tool_result"):
        if is_result:
            yield from (_result(block, place) for place, block in run)
        else:
            yield MessageBody(role="user", content=_joined(list(run)))


def _result(block: Block, place: str) -> MessageBody:
    """Return the result of a tool. Chat templates know no failed results, so the text says that it is one."""
    text = text_of(block.content, f"{place}.content") or ""
    if block.is_error:
        text = f"Error: {text}"
    return MessageBody(
        role="tool", content=text, tool_call_id=needed(block.tool_use_id, f"{place}.tool_use_id")
    )


def _answered(blocks: _Placed) -> MessageBody:
    """Return the message of a turn of the model."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallBody] = []
    for place, block in blocks:
        match block.type:
            case "thinking":
                thoughts.append(needed(block.thinking, f"{place}.thinking"))
            case "redacted_thinking":
                pass  # Only the server that encrypted it can read it.
            case "tool_use" if len(calls) == MOST_CALLS:
                raise ApiError(
                    400, f"{place} is one of more than {MOST_CALLS} calls in a turn", "invalid_value", place
                )
            case "tool_use":
                calls.append(_call(block, place))
            case _:
                texts.append(_text(block, place))
    # Unlike a user's, the model's texts are one text, in which calls or citations stood.
    return MessageBody(
        role="assistant",
        content="".join(texts) if texts or not calls else None,
        reasoning_content="\n".join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )


def _call(block: Block, place: str) -> ToolCallBody:
    name = needed(block.name, f"{place}.name")
    return past_call(needed(block.id, f"{place}.id"), name, block.input or {})


def _joined(blocks: _Placed) -> str:
    return "\n".join(_text(block, place) for place, block in blocks)


_KINDS = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _text(block: Block, place: str) -> str:
    """Return the text of a block. Raises ApiError for a block that may not stand here, or is not
    supported."""
    if block.type == "text" and block.text is None:
        raise ApiError(400, f"{place}.text is missing", "invalid_value", f"{place}.text")
    if block.type in _KINDS:
        raise ApiError(
            400,
            f"{place} is a {block.type} block, which a message of this role cannot have; "
            "results are the user's, calls and thinking the assistant's",
            "invalid_value",
            place,
        )
    if block.type.startswith("server_tool") or block.type.endswith("_tool_result"):
        raise ApiError(
            400,
            f"{place} is a {quoted(block.type)} block, and this daemon runs no tools itself; leave it out",
            "unsupported_content",
            place,
        )
    return part_text(ContentPart(type=block.type, text=block.text), place)
