"""Items of a response while they come. Their events must be written before the next one is asked for."""

import uuid
from collections.abc import Iterator
from typing import Protocol

from pydantic import BaseModel

from anespec.runtime.server.responses.answers import (
    CallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseAnswer,
)


class Event(BaseModel):
    """The common fields of all events."""

    type: str
    sequence_number: int = 0


class ResponseEvent(Event):
    """How the response stands."""

    response: ResponseAnswer


class ItemEvent(Event):
    """An item begins or ends."""

    output_index: int
    item: OutputItem


class PartEvent(Event):
    """A part of an item begins or ends."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class TextEvent(Event):
    """Some text of a part, or at its end all of it."""

    item_id: str
    output_index: int
    content_index: int
    delta: str = ""
    text: str = ""
    logprobs: tuple[()] = ()


class ArgumentsEvent(Event):
    """Some arguments of a call, or at its end all of them."""

    item_id: str
    output_index: int
    delta: str = ""
    arguments: str = ""


class OpenItem(Protocol):
    """An item that is still coming, and the events that tell of it."""

    @property
    def item(self) -> OutputItem:
        """What there is of it; its text comes in at its end."""
        ...

    def begin(self) -> Iterator[Event]:
        """It begins."""
        ...

    def add(self, text: str) -> Iterator[Event]:
        """Some more of its text."""
        ...

    def end(self, status: ItemStatus) -> Iterator[Event]:
        """It ends."""
        ...


class _Texts:
    """An item of one part, which is text."""

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
    """A call, whose text is its arguments."""

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
    """Reasoning, as item number `index`."""
    item = ReasoningItem(id=_id("rs"), type="reasoning", summary=(), content=[], status="in_progress")
    return _Texts(index, item, ReasoningText(type="reasoning_text", text=""))


def open_message(index: int) -> OpenItem:
    """A message."""
    item = MessageItem(id=_id("msg"), type="message", role="assistant", content=[], status="in_progress")
    return _Texts(index, item, OutputText(type="output_text", text="", annotations=(), logprobs=()))


def open_call(index: int, call_id: str, name: str) -> OpenItem:
    """A call."""
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
