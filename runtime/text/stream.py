"""Decode token ids to text one at a time, and stop at stop strings."""

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

from anespec.system.errors import RequestError


class Pieces(Protocol):
    """The methods of a tokenizer that a stream needs."""

    @property
    def adds_space(self) -> bool:
        """Whether encoding puts a space before a text, which decoding must remove again."""
        ...

    def piece(self, id: int, *, skip_special: bool) -> bytes:
        """Return the bytes that a token adds to a text."""
        ...


class StreamDecoder:
    """A decoder of a growing token sequence. The texts that it returns, joined, are `decode` of all ids.

    A character is returned once all its bytes are there; bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(
        self,
        tokenizer: Pieces,
        *,
        skip_special: bool = True,
        continues: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        """Begin a text. With `continues` the ids continue ordinary text, so their first space is kept.

        `shown` are special tokens that are written out although others are skipped.
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown = frozenset(shown)
        self._drops_space = tokenizer.adds_space and not continues
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; it may be empty.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        skipped = self._skip_special and token_id not in self._shown
        piece = self._tokenizer.piece(token_id, skip_special=skipped)
        if piece and self._drops_space:
            piece = piece.removeprefix(b" ")
            self._drops_space = False
        return self._characters.decode(piece)

    def flush(self) -> str:
        """Return the end of the text: U+FFFD if its last character is incomplete, else nothing."""
        return self._characters.decode(b"", final=True)


class StopFilter(Protocol):
    """A filter that ends one stream of text; see StopStrings."""

    @property
    def found(self) -> str | None:
        """The text that ended the stream."""
        ...

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; return the text that can be shown now, and whether the stream has ended."""
        ...

    def flush(self) -> str:
        """Return the held-back text at the end."""
        ...


class StopStrings:
    """A filter that ends a stream of text before the first stop string that is complete in it.

    If several are complete at the same character, the longest counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings; raise RequestError if one is empty."""
        if "" in stops:
            raise RequestError("a stop string is empty; leave it out, or give at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; return the text that can be shown now, and whether a stop string was found.

        Text that may be the beginning of a stop string is held back. After a stop string the text is empty.
        """
        if self.found is not None:
            return "", True
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.found = min(found)
            self._held = ""
            return text[:start], True
        shown = len(text) - self._undecided(text)
        self._held = text[shown:]
        return text[:shown], False

    def flush(self) -> str:
        """Return the held-back text at the end."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Return the length of the longest end of `text` that is the beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        return next(
            (size for size in range(longest, 0, -1) if any(s.startswith(text[-size:]) for s in self._stops)),
            0,
        )
