"""The appearance of a chat: streamed answers, dimmed reasoning, coloured drafted tokens, and notes."""

from collections.abc import Iterable

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from anespec.manifests.formatting import counted, printable
from anespec.runtime.text.reasoning import Piece
from anespec.word_wrap import WordWrap

DRAFTED, REASONING, NOTE, ERROR = "green", "dim", "yellow", "red"
LONGEST_NAME = 30


class Screen:
    """Consoles for answers, for what else was asked for, and for notes; all may be the same terminal."""

    def __init__(self, answers: Console, others: Console, notes: Console, show_drafts: bool = True) -> None:
        """Consoles decide by themselves whether there are colours."""
        self._answers = answers
        self._others = others
        self._notes = notes
        self._show_drafts = show_drafts
        # A program that reads the answers gets them as they are, and at once.
        self._wrap = WordWrap() if answers.is_terminal else None

    def piece(self, piece: Piece) -> None:
        """Some more of an answer."""
        styles = [REASONING] if piece.reasoning else []
        styles += [DRAFTED] if piece.drafted and self._show_drafts else []
        style = " ".join(styles)
        if self._wrap is None:
            self._show([(piece.text, style)])
        else:
            self._show(self._wrap.push(piece.text, style, self._answers.width))

    def end_answer(self) -> None:
        """Start a new line before the next text."""
        if self._wrap is not None:
            self._show(self._wrap.end(self._answers.width))
        self._answers.print()

    def _show(self, pieces: Iterable[tuple[str, str]]) -> None:
        for text, style in pieces:
            self._answers.print(Text(text, style=style), end="")
        self._answers.file.flush()

    def say(self, text: str, style: str = "") -> None:
        """Show the output of a command."""
        self._others.print(text, style=style)

    def note(self, text: str) -> None:
        """Show a note."""
        self._notes.print(f"note: {text}", style=NOTE)

    def error(self, text: str) -> None:
        """Show an error."""
        self._others.print(f"error: {text}", style=ERROR)


def context_text(used: int | None, context: int) -> str:
    """Return how full the context is, as text."""
    return f"context: {context} tokens" if used is None else f"context: {used} of {context} tokens"


def status_line(name: str, used: int | None, context: int, speed: str, columns: int) -> str:
    """The line below the prompt: the model, how full the context is, and how fast the last answer came."""
    filled = f"context of {context}"
    if used is not None:
        filled = f"context {used} of {context} ({100 * used // max(1, context)} %)"
    parts = [printable(name, LONGEST_NAME), filled, speed, "/help"]
    while cell_len(line := " · ".join(part for part in parts if part)) > columns - 2 and len(parts) > 1:
        # What matters most stays longest.
        parts.pop(0 if len(parts) == 2 else -1)
    room = max(0, columns - 2)
    return f" {set_cell_size(line, room) if cell_len(line) > room else line} "


def turns_text(count: int) -> str:
    """So many turns, in words."""
    return counted(count, "turn")


def first_turns_text(count: int) -> str:
    """The first so many turns, in words."""
    return "the first turn" if count == 1 else f"the first {turns_text(count)}"
