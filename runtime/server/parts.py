"""The parts of an answer, for every API: reasoning, content, and tool calls."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningDelta:
    """Reasoning, without its tags."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """The beginning of a tool call; calls of an answer are numbered from 0 on."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolArgumentsDelta:
    """A piece of a call's arguments, which are JSON as the model wrote it."""

    index: int
    text: str


AnswerPart = ReasoningDelta | ContentDelta | ToolCallStart | ToolArgumentsDelta
