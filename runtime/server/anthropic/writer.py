"""Write the answers of `/v1/messages`, whole or as a stream of events."""

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import from_json

from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.server.answers.reading import Reading
from anespec.runtime.server.anthropic.answers import (
    AnswerBlock,
    AnthropicError,
    MessageAnswer,
    MessageUsage,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    stop_reason_of,
    usage_of,
)
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import event
from anespec.runtime.server.openai.usage import timings_of
from anespec.runtime.server.parts import (
    AnswerPart,
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)

SIGNATURE = "unsigned"
"""The signature of all reasoning. It is not empty, since some clients drop reasoning without one."""


class TextDelta(BaseModel):
    """A piece of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(BaseModel):
    """A piece of reasoning."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(BaseModel):
    """The signature at the end of reasoning."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(BaseModel):
    """A piece of a call's input, as JSON text."""

    type: Literal["input_json_delta"]
    partial_json: str


class EndDelta(BaseModel):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class Event(BaseModel):
    """An event of a stream, whose other fields depend on its type."""

    type: str
    message: MessageAnswer | None = None
    index: int = 0
    content_block: AnswerBlock | None = None
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta | EndDelta | None = None
    usage: MessageUsage | None = None


class MessageWriter:
    """The writer of the answer to a request."""

    def __init__(
        self,
        model: str,
        reading: Reading,
        prompt_tokens: int,
        stops: Collection[str] = (),
        shows_thinking: bool = True,
        request_id: str = "",
    ) -> None:
        """Write the answer of `model`, as `reading` splits it, to a prompt of `prompt_tokens`.

        `stops` are the request's stop sequences. Without `shows_thinking` the blocks of reasoning are empty.
        """
        self._message = MessageAnswer(
            id=f"msg_{uuid.uuid4().hex}",
            type="message",
            role="assistant",
            model=model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            # How many tokens of the prompt are reused is not known before the end.
            usage=MessageUsage(
                input_tokens=prompt_tokens,
                cache_creation_input_tokens=0,
                cache_read_input_tokens=0,
                output_tokens=0,
            ),
        )
        self._reading = reading
        self._reader = reading.reader()
        self._stops = stops
        self._shows_thinking = shows_thinking
        self._request_id = request_id
        self._open: AnswerBlock | None = None
        self._texts: list[str] = []

    def begin(self) -> Iterable[bytes]:
        """Return the event of the message without its content."""
        yield _written(Event(type="message_start", message=self._message))

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        """Return the events for the changes of blocks."""
        yield from map(_written, self._events(self._reader.push(chunk.text)))

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        """Return the held-back text, the end of the last block, and why the answer ended."""
        yield from map(_written, self._ended(summaries[0]))
        message = self._message
        assert message.stop_reason is not None
        end = EndDelta(stop_reason=message.stop_reason, stop_sequence=message.stop_sequence)
        yield _written(Event(type="message_delta", delta=end, usage=message.usage))
        yield _written(Event(type="message_stop"))

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """Return an event with Anthropic's error object."""
        yield event(AnthropicError.of(error, self._request_id), "error")

    def whole(self, summaries: Sequence[Summary]) -> MessageAnswer:
        """Return the whole message."""
        for events in (self._events(self._reader.push(summaries[0].text)), self._ended(summaries[0])):
            for _ in events:
                pass
        self._message.timings = timings_of(summaries[0])
        return self._message

    def _events(self, parts: Iterable[AnswerPart]) -> Iterator[Event]:
        for part in parts:
            match part:
                case ReasoningDelta(text):
                    if not isinstance(self._open, ThinkingBlock):
                        yield from self._opened(ThinkingBlock(type="thinking", thinking="", signature=""))
                    if self._shows_thinking:
                        yield self._added(text, ThinkingDelta(type="thinking_delta", thinking=text))
                case ContentDelta(text):
                    if not isinstance(self._open, TextBlock):
                        yield from self._opened(TextBlock(type="text", text=""))
                    yield self._added(text, TextDelta(type="text_delta", text=text))
                case ToolCallStart(_, id, name):
                    yield from self._opened(ToolUseBlock(type="tool_use", id=id, name=name, input={}))
                case ToolArgumentsDelta(_, text):
                    yield self._added(text, InputDelta(type="input_json_delta", partial_json=text))

    def _ended(self, summary: Summary) -> Iterator[Event]:
        yield from self._events(self._reader.end())
        yield from self._closed()
        message = self._message
        calls = any(isinstance(block, ToolUseBlock) for block in message.content)
        message.stop_reason = stop_reason_of(summary, self._stops, calls)
        if message.stop_reason == "stop_sequence":
            message.stop_sequence = summary.stop
        message.usage = usage_of(summary, self._reading.reasoning_tokens(summary))

    def _opened(self, block: AnswerBlock) -> Iterator[Event]:
        yield from self._closed()
        self._open, self._texts = block, []
        self._message.content.append(block)
        yield Event(type="content_block_start", index=self._index, content_block=block)

    def _added(self, text: str, delta: TextDelta | ThinkingDelta | InputDelta) -> Event:
        self._texts.append(text)
        return Event(type="content_block_delta", index=self._index, delta=delta)

    def _closed(self) -> Iterator[Event]:
        """End the open block, if there is one: set its content."""
        text = "".join(self._texts)
        match self._open:
            case None:
                return
            case TextBlock() as block:
                block.text = text
            case ToolUseBlock() as block:
                block.input = _input(text)
            case ThinkingBlock() as block:
                block.thinking, block.signature = text, SIGNATURE
                delta = SignatureDelta(type="signature_delta", signature=SIGNATURE)
                yield Event(type="content_block_delta", index=self._index, delta=delta)
        yield Event(type="content_block_stop", index=self._index)
        self._open = None

    @property
    def _index(self) -> int:
        return len(self._message.content) - 1


def _written(told: Event) -> bytes:
    return event(told, told.type)


def _input(text: str) -> dict[str, Any]:
    """Return the input of a call as Anthropic's clients read it: if it was cut off, as much as there is."""
    try:
        found = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
