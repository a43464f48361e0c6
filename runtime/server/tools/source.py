"""What readers of tool calls read from: text that is still coming."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


class NoCall(Exception):  # noqa: N818 (nothing is wrong: it is text)
    """What was read is no tool call."""


@dataclass(frozen=True)
class Begun:
    """A call's name."""

    name: str


@dataclass(frozen=True)
class Piece:
    """A piece of the call's arguments."""

    text: str


Found: TypeAlias = Iterator[Begun | Piece | None]
"""What a reader finds; None where it needs more text. It raises NoCall where there is none."""


class Source:
    """Text from some place on, and how far it is read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ended = False

    @property
    def left(self) -> str:
        """What is not read yet."""
        return self.text[self.at :]

    def space(self) -> Iterator[None]:
        """Pass over white space, as far as there may be some."""
        while True:
            self.at = len(self.text) - len(self.left.lstrip())
            if self.at < len(self.text) or self.ended:
                return
            yield None

    def literal(self, *texts: str) -> Iterator[None]:
        """Pass over one of these texts, of which none begins another; NoCall where none is there."""
        while True:
            left = self.left
            for text in texts:
                if left.startswith(text):
                    self.at += len(text)
                    return
            if self.ended or not any(text.startswith(left) for text in texts):
                raise NoCall
            yield None
