"""Render a chat: streamed answers, dimmed reasoning, coloured drafted tokens, and notes."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from anespec.cli.word_wrap import WordWrap
from anespec.runtime.text.reasoning import Piece
from anespec.system.formatting import counted, printable

DRAFTED, REASONING, NOTE, ERROR = "green", "dim", "yellow", "red"
LONGEST_NAME = 30


class Screen:
    """The consoles for answers, for the output of commands, and for notes; all may be the same terminal."""

    def __init__(self, answers: Console, others: Console, notes: Console, show_drafts: bool = True) -> None:
        """Each console decides whether it uses colours."""
        self._answers = answers
        self._others = others
        self._notes = notes
        self._show_drafts = show_drafts
        # A program that reads the answers gets them unwrapped and without delay.
        self._wrap = WordWrap() if answers.is_terminal else None
        self._has_begun = False
        self._held = ""

    def piece(self, piece: Piece) -> None:
        """Show a piece of an answer."""
        styles = [REASONING] if piece.reasoning else []
        styles += [DRAFTED] if piece.drafted and self._show_drafts else []
        style = " ".join(styles)
        text = piece.text if self._has_begun else self._beginning(piece.text)
        if self._wrap is None:
            self._show([(text, style)])
        else:
            self._show(self._wrap.push(text, style, self._answers.width))

    def _beginning(self, text: str) -> str:
        """Remove one leading space from an answer's first text; several spaces are an indentation, and stay.

        Many vocabularies write a space before the first word.
        """
        text = self._held + text
        if text in ("", " "):
            self._held = text
            return ""
        self._has_begun, self._held = True, ""
        return text.removeprefix(" ") if not text.startswith("  ") else text

    def end_answer(self) -> None:
        """Start a new line before the next text."""
        self._has_begun, self._held = False, ""
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


def status_line(
    name: str, used: int | None, context: int, checking: str | None, speed: Sequence[str], columns: int
) -> str:
    """Return the line below the prompt: the model, how full the context is, the progress of background gates,
    and the speed of the last answer.

    Parts that do not fit are left out, the least important one first: /help, the speed, the name.
    """
    filled = f"context of {context}"
    if used is not None:
        filled = f"context {used} of {context} ({100 * used // max(1, context)} %)"
    model = printable(name, LONGEST_NAME)
    checked = [] if checking is None else [f"checking: {checking}"]
    fast = [", ".join(speed[:count]) for count in range(len(speed), 0, -1)]
    variants = [
        [model, filled, *checked, *fast[:1], "/help"],
        *([model, filled, *checked, text] for text in fast),
        [model, filled, *checked],
        [filled, *checked],
        [filled],
    ]
    room = max(0, columns - 2)
    lines = [" · ".join(parts) for parts in variants]
    line = next((line for line in lines if cell_len(line) <= room), lines[-1])
    return f" {set_cell_size(line, room) if cell_len(line) > room else line} "


def turns_text(count: int) -> str:
    """Return a number of turns in words, e.g. `2 turns`."""
    return counted(count, "turn")


def first_turns_text(count: int) -> str:
    """Return the first turns in words, e.g. `the first 2 turns`."""
    return "the first turn" if count == 1 else f"the first {turns_text(count)}"
