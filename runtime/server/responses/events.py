"""The events of a response that is streamed; each bears its place in the stream."""

from pydantic import BaseModel

from anespec.runtime.server.responses.answers import OutputItem, OutputText, ReasoningText, ResponseAnswer


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
