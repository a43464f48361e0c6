"""Write the answers of `/v1/responses`."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Protocol

from pydantic import BaseModel

from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.server.answers.reading import Reading
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import event
from anespec.runtime.server.openai.usage import finish_reason, timings_of
from anespec.runtime.server.parts import (
    AnswerPart,
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from anespec.runtime.server.responses.answers import (
    CallItem,
    IncompleteDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseAnswer,
    ResponseFailure,
    usage_of,
)


class Event(BaseModel):
    """The common fields of all events."""

    type: str
    sequence_number: int = 0


class ResponseEvent(Event):
    """The current state of the response."""

    response: ResponseAnswer


class ItemEvent(Event):
    """The begin or end of an item."""

    output_index: int
    item: OutputItem


class PartEvent(Event):
    """The begin or end of an item's part."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class TextEvent(Event):
    """A piece of a part's text, or at its end the whole text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str = ""
    text: str = ""
    logprobs: tuple[()] = ()


class ArgumentsEvent(Event):
    """A piece of a call's arguments, or at its end all arguments."""

    item_id: str
    output_index: int
    delta: str = ""
    arguments: str = ""


class OpenItem(Protocol):
    """An unfinished item that yields its events."""

    @property
    def item(self) -> OutputItem:
        """Return the item; its text is complete only after `end`."""
        ...

    def begin(self) -> Iterator[Event]:
        """Yield the events of its begin."""
        ...

    def add(self, text: str) -> Iterator[Event]:
        """Add a piece of text."""
        ...

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """Yield the events of its end."""
        ...


class _Texts:
    """An item with one part of text."""

    def __init__(
        self, index: int, item: ReasoningItem | MessageItem, part: OutputText | ReasoningText
    ) -> None:
        self.item = item
        self._index = index
        self._part = part
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield ItemEvent(type="response.output_item.added", output_index=self._index, item=self.item)
        self.item.content.append(self._part)  # type: ignore[arg-type]
        yield self._of_part("response.content_part.added")

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        event = self._of_text("delta")
        event.delta = text
        yield event

    def end(self, status: ItemStatus) -> Iterator[Event]:
        self._part.text, self.item.status = "".join(self._texts), status
        event = self._of_text("done")
        event.text = self._part.text
        yield event
        yield self._of_part("response.content_part.done")
        yield ItemEvent(type="response.output_item.done", output_index=self._index, item=self.item)

    def _of_part(self, type: str) -> PartEvent:
        return PartEvent(
            type=type, item_id=self.item.id, output_index=self._index, content_index=0, part=self._part
        )

    def _of_text(self, what: str) -> TextEvent:
        found = TextEvent(
            type=f"response.{self._part.type}.{what}",
            item_id=self.item.id,
            output_index=self._index,
            content_index=0,
        )
        if isinstance(self._part, OutputText):
            found.logprobs = ()
        return found


class _Call:
    """A call; its text is the arguments."""

    def __init__(self, index: int, item: CallItem) -> None:
        self.item = item
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield ItemEvent(type="response.output_item.added", output_index=self._index, item=self.item)

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        event = self._of_arguments("delta")
        event.delta = text
        yield event

    def end(self, status: ItemStatus) -> Iterator[Event]:
        self.item.arguments, self.item.status = "".join(self._texts), status
        event = self._of_arguments("done")
        event.arguments = self.item.arguments
        yield event
        yield ItemEvent(type="response.output_item.done", output_index=self._index, item=self.item)

    def _of_arguments(self, what: str) -> ArgumentsEvent:
        type = f"response.function_call_arguments.{what}"
        return ArgumentsEvent(type=type, item_id=self.item.id, output_index=self._index)


def open_reasoning(index: int) -> OpenItem:
    """Return a reasoning item with the number `index`."""
    item = ReasoningItem(id=_id("rs"), type="reasoning", summary=(), content=[], status="in_progress")
    return _Texts(index, item, ReasoningText(type="reasoning_text", text=""))


def open_message(index: int) -> OpenItem:
    """Return a message item with the number `index`."""
    item = MessageItem(id=_id("msg"), type="message", role="assistant", content=[], status="in_progress")
    return _Texts(index, item, OutputText(type="output_text", text="", annotations=(), logprobs=()))


def open_call(index: int, call_id: str, name: str) -> OpenItem:
    """Return a call item with the number `index`."""
    return _Call(
        index,
        CallItem(
            id=_id("fc"),
            type="function_call",
            call_id=call_id,
            name=name,
            arguments="",
            status="in_progress",
        ),
    )


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


class ResponseWriter:
    """The writer of the answer to a request."""

    def __init__(self, response: ResponseAnswer, reading: Reading) -> None:
        """`response` is the initial state of the response."""
        self._response = response
        self._reading = reading
        self._reader = reading.reader()
        self._open: OpenItem | None = None
        self._numbers = count()

    def begin(self) -> Iterable[bytes]:
        """Return the events of the initial response."""
        yield self._written(ResponseEvent(type="response.created", response=self._response))
        yield self._written(ResponseEvent(type="response.in_progress", response=self._response))

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        """Return the events for the changes of items."""
        yield from map(self._written, self._events(self._reader.push(chunk.text)))

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        """Return the held-back text, the end of the last item, and the whole response."""
        yield from map(self._written, self._ended(summaries[0]))
        yield self._written(ResponseEvent(type=f"response.{self._response.status}", response=self._response))

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """Return an event with the response so far, and the error."""
        yield from map(self._written, self._closed("incomplete"))
        self._response.status = "failed"
        self._response.error = ResponseFailure(code="server_error", message=error.message)
        yield self._written(ResponseEvent(type="response.failed", response=self._response))

    def whole(self, summaries: Sequence[Summary]) -> ResponseAnswer:
        """Return the whole response."""
        for events in (self._events(self._reader.push(summaries[0].text)), self._ended(summaries[0])):
            for _ in events:
                pass
        return self._response

    def _events(self, parts: Iterable[AnswerPart]) -> Iterator[Event]:
        for part in parts:
            match part:
                case ReasoningDelta(text):
                    if self._open is None or not isinstance(self._open.item, ReasoningItem):
                        yield from self._opened(open_reasoning(len(self._response.output)))
                    yield from self._added(text)
                case ContentDelta(text):
                    if self._open is None or not isinstance(self._open.item, MessageItem):
                        yield from self._opened(open_message(len(self._response.output)))
                    yield from self._added(text)
                case ToolCallStart(_, id, name):
                    yield from self._opened(open_call(len(self._response.output), id, name))
                case ToolArgumentsDelta(_, text):
                    yield from self._added(text)

    def _ended(self, summary: Summary) -> Iterator[Event]:
        response = self._response
        yield from self._events(self._reader.end())
        if not response.output:
            yield from self._opened(open_message(0))
        complete = finish_reason(summary) == "stop"
        response.status = "completed" if complete else "incomplete"
        yield from self._closed(response.status)
        if not complete:
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        response.completed_at = int(time.time())
        response.usage = usage_of(summary, self._reading.reasoning_tokens(summary))
        response.timings = timings_of(summary)

    def _opened(self, opened: OpenItem) -> Iterator[Event]:
        yield from self._closed("completed")
        self._open = opened
        self._response.output.append(opened.item)
        yield from opened.begin()

    def _added(self, text: str) -> Iterator[Event]:
        assert self._open is not None
        yield from self._open.add(text)

    def _closed(self, status: ItemStatus) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self._open = None

    def _written(self, told: Event) -> bytes:
        told.sequence_number = next(self._numbers)
        return event(told, told.type)
