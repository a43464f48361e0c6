"""The parts of an answer, for every API: reasoning, content, and tool calls."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thought:
    """Reasoning, without its tags."""

    text: str


@dataclass(frozen=True)
class Said:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class Called:
    """The beginning of a tool call; calls of an answer are numbered from 0 on."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Argued:
    """A piece of a call's arguments, which are JSON as the model wrote it."""

    index: int
    text: str


AnswerPart = Thought | Said | Called | Argued
