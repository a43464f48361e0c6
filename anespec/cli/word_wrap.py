"""Wrap text between words for a terminal while it arrives in pieces.

Widths are in cells of the terminal: two for Chinese, Japanese, Korean and most emoji, zero for combining
characters.
"""

from collections.abc import Iterator
from unicodedata import category

from rich.cells import cell_len

Piece = tuple[str, str]
"""A piece of text and its style."""

FENCE = "```"
ZERO_WIDTH_JOINER = "\u200d"
CLOSING = frozenset({"Pe", "Pf", "Po", "Lm"})
"""Unicode categories that may not begin a line after a wide character: closing marks, punctuation, and length
marks."""


class WordWrap:
    """A word wrapper for streamed text.

    It holds a word back until the word is complete, and starts a new line before a word that does not fit.
    Lines of a fenced code block, and words longer than a line, are left for the terminal to break, so that
    they can be copied unchanged.
    """

    def __init__(self, fences: bool = True) -> None:
        """Start at the beginning of a line. If `fences` is False, no text counts as code."""
        self._fences = fences
        self._column = 0
        self._spaces: list[Piece] = []
        self._word: list[Piece] = []
        self._line = ""
        self._in_code = False

    def push(self, text: str, style: str, width: int) -> Iterator[Piece]:
        """Yield the text that can be shown after `text` arrived; a line has `width` cells."""
        for character in text:
            if character == "\n":
                yield from self._place(width)
                yield from self._newline()
            elif character.isspace() and character != "\u00a0":
                yield from self._place(width)
                self._spaces.append((character, style))
            else:
                if self._may_break_before(character):
                    yield from self._place(width)
                self._word.append((character, style))
            if character != "\n":
                self._line += character

    def end(self, width: int) -> Iterator[Piece]:
        """Yield the text that was held back; the next text starts a new line."""
        yield from self._place(width)
        self._spaces, self._column, self._line, self._in_code = [], 0, "", False

    def _newline(self) -> Iterator[Piece]:
        if self._fences and self._line.lstrip().startswith(FENCE):
            self._in_code = not self._in_code
        self._spaces, self._column, self._line = [], 0, ""
        yield "\n", ""

    def _place(self, width: int) -> Iterator[Piece]:
        """Yield the word, after its spaces or a new line instead of them."""
        if not self._word:
            return
        spaces, word = _cells(self._spaces), _cells(self._word)
        is_code = self._in_code or (self._fences and self._line.lstrip().startswith(FENCE))
        if self._column and self._column + spaces + word > width and not is_code:
            yield "\n", ""
            self._column = 0
        else:
            yield from self._spaces
            self._column += spaces
        yield from _joined(self._word)
        self._column += word
        self._spaces, self._word = [], []

    def _may_break_before(self, character: str) -> bool:
        """Return whether a line may break between the word so far and this character: usually next to a wide
        character."""
        if not self._word or category(character) in CLOSING or cell_len(character) == 0:
            return False
        last = self._word[-1][0]
        if last == ZERO_WIDTH_JOINER or _joins_an_emoji(character):
            return False
        return cell_len(character) == 2 or cell_len(last) == 2


def wrapped(text: str, width: int) -> str:
    """Wrap a text between words to lines of `width` cells; a longer word, e.g. a path, stays whole."""
    wrap = WordWrap(fences=False)
    return "".join(piece for piece, _ in (*wrap.push(text, "", width), *wrap.end(width)))


def _cells(pieces: list[Piece]) -> int:
    return cell_len("".join(text for text, _ in pieces))


def _joined(pieces: list[Piece]) -> Iterator[Piece]:
    """Join neighbouring pieces of the same style."""
    held, style = "", ""
    for text, own in pieces:
        if own != style and held:
            yield held, style
            held = ""
        held, style = held + text, own
    if held:
        yield held, style


def _joins_an_emoji(character: str) -> bool:
    """Return whether the character is half of a flag, or a modifier of skin colour for the previous one."""
    return "\U0001f1e6" <= character <= "\U0001f1ff" or "\U0001f3fb" <= character <= "\U0001f3ff"
