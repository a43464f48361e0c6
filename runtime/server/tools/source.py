"""Provide the streamed text that readers of tool calls read from."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

LONGEST_WORD = 256

_WORD = re.compile(r"[A-Za-z0-9_.-]*")


class NoCall(Exception):  # noqa: N818 (not an error: it is text)
    """The text is not a tool call."""


@dataclass(frozen=True)
class Begun:
    """The start of a call, with its name."""

    name: str


@dataclass(frozen=True)
class Piece:
    """A piece of the call's arguments."""

    text: str


Found: TypeAlias = Iterator[Begun | Piece | None]
"""The generator of a reader: it yields what it finds, or None when it needs more text. It raises NoCall for
text."""


class Source:
    """A streamed text, and the position up to which it is read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ended = False

    @property
    def left(self) -> str:
        """Return the text that was not read yet."""
        return self.text[self.at :]

    def space(self) -> Iterator[None]:
        """Skip white space."""
        while True:
            self.at = len(self.text) - len(self.left.lstrip())
            if self.at < len(self.text) or self.ended:
                return
            yield None

    def literal(self, *texts: str) -> Generator[None, None, str]:
        """Read one of the texts and return it; none may begin another. Raises NoCall if none matches."""
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
        """Read up to and including `end`, and return the text before it. Raises NoCall if `end` never
        comes."""
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
        """Read and return a name. Raises NoCall if there is none."""
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
