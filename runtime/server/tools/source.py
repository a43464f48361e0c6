"""The text that readers of tool calls read from while it arrives."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

LONGEST_WORD = 256

_WORD = re.compile(r"[A-Za-z0-9_.-]*")


class NoCall(Exception):  # noqa: N818 (nothing is wrong: it is text)
    """The text is not a tool call."""


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
        """The text that was not read yet."""
        return self.text[self.at :]

    def space(self) -> Iterator[None]:
        """Pass over white space, as far as there may be some."""
        while True:
            self.at = len(self.text) - len(self.left.lstrip())
            if self.at < len(self.text) or self.ended:
                return
            yield None

    def literal(self, *texts: str) -> Generator[None, None, str]:
        """Pass over one of these texts, of which none begins another, and say which; else NoCall."""
        while True:
            left = self.left
            for text in texts:
                if left.startswith(text):
                    self.at += len(text)
                    return text
            if self.ended or not any(text.startswith(left) for text in texts):
                raise NoCall
            yield None

    def until(self, end: str) -> Generator[None, None, str]:
        """Pass over text and the `end` behind it, and say the text; NoCall where that never comes."""
        start = looked = self.at
        while True:
            found = self.text.find(end, looked)
            if found >= 0:
                self.at = found + len(end)
                return self.text[start:found]
            if self.ended:
                raise NoCall
            looked = max(start, len(self.text) - len(end) + 1)
            yield None

    def word(self) -> Generator[None, None, str]:
        """Pass over a name, and say it; NoCall where there is none."""
        while True:
            found = _WORD.match(self.text, self.at)
            if found is None or self.ended or found.end() - found.start() > LONGEST_WORD:
                raise NoCall
            if found.end() < len(self.text):
                break
            yield None
        self.at = found.end()
        if not found[0]:
            raise NoCall
        return found[0]
