"""Define the parts of a streamed answer that all APIs share: reasoning, content and tool calls."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningDelta:
    """A piece of reasoning, without its tags."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """The start of a tool call; the calls of an answer are numbered from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolArgumentsDelta:
    """A piece of a call's arguments: JSON as the model wrote it."""

    index: int
    text: str


AnswerPart = ReasoningDelta | ContentDelta | ToolCallStart | ToolArgumentsDelta
