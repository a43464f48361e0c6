"""How `/v1/responses` writes its answer."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

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
    IncompleteDetails,
    ItemStatus,
    MessageItem,
    ReasoningItem,
    ResponseAnswer,
    ResponseFailure,
    usage_of,
)
from anespec.runtime.server.responses.open_items import (
    Event,
    OpenItem,
    ResponseEvent,
    open_call,
    open_message,
    open_reasoning,
)


class ResponseWriter:
    """Writes the one answer to a request."""

    def __init__(self, response: ResponseAnswer, reading: Reading) -> None:
        """`response` is how it stands before anything has come."""
        self._response = response
        self._reading = reading
        self._reader = reading.reader()
        self._open: OpenItem | None = None
        self._numbers = count()

    def begin(self) -> Iterable[bytes]:
        """The response as it was asked for."""
        yield self._written(ResponseEvent(type="response.created", response=self._response))
        yield self._written(ResponseEvent(type="response.in_progress", response=self._response))

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        """Return the items' changes by a text."""
        yield from map(self._written, self._told(self._reader.push(chunk.text)))

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        """Return the held-back text, the end of the last item, and the whole response."""
        yield from map(self._written, self._ended(summaries[0]))
        yield self._written(ResponseEvent(type=f"response.{self._response.status}", response=self._response))

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """The response as far as it came, and what went wrong."""
        yield from map(self._written, self._closed("incomplete"))
        self._response.status = "failed"
        self._response.error = ResponseFailure(code="server_error", message=error.message)
        yield self._written(ResponseEvent(type="response.failed", response=self._response))

    def whole(self, summaries: Sequence[Summary]) -> ResponseAnswer:
        """The whole response."""
        for events in (self._told(self._reader.push(summaries[0].text)), self._ended(summaries[0])):
            for _ in events:
                pass
        return self._response

    def _told(self, parts: Iterable[AnswerPart]) -> Iterator[Event]:
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
        yield from self._told(self._reader.end())
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
