"""Run a chat's loop: over the lines of a pipe, or in a terminal."""

from collections.abc import Callable, Iterable, Iterator

from anespec.cli.chat.commands import Then, take_line
from anespec.cli.chat.conversation import Conversation
from anespec.cli.prompts import LONGEST_PROMPT
from anespec.system.errors import AnespecError, GoldenGateError, RequestError
from anespec.system.formatting import bytes_text

QUOTES = '"""'
"""The marker before and after a message of several lines."""

Read = Callable[[], str]
"""A function that asks for a message. It raises EOFError at the end of the input, KeyboardInterrupt at ^C."""


def messages_of(lines: Iterable[str]) -> Iterator[str]:
    """Yield the messages in lines of text: one per line, or several lines between QUOTES.

    Raises RequestError if QUOTES are not closed within LONGEST_PROMPT characters.
    """
    open_lines: list[str] | None = None
    held = 0
    for line in lines:
        text = line.rstrip("\r\n")
        if open_lines is None and not text.lstrip().startswith(QUOTES):
            yield text
            continue
        if open_lines is None:
            open_lines, held, text = [], 0, text.lstrip().removeprefix(QUOTES)
        before, end, _ = text.partition(QUOTES)
        open_lines.append(before)
        held += 1 + len(before)
        if held > LONGEST_PROMPT:
            raise RequestError(f"a message is longer than {bytes_text(LONGEST_PROMPT)}; close its {QUOTES}")
        if end:
            yield "\n".join(open_lines)
            open_lines = None
    if open_lines is not None:
        yield "\n".join(open_lines)


def is_complete(text: str) -> bool:
    """Return whether Enter sends the typed text: opened QUOTES must be closed."""
    begun = text.lstrip()
    return not begun.startswith(QUOTES) or QUOTES in begun.removeprefix(QUOTES)


def run_lines(conversation: Conversation, lines: Iterable[str]) -> None:
    """Answer each message; end at the first failure. Raises like `take_line`."""
    for message in messages_of(lines):
        if take_line(conversation, message) is Then.LEAVE:
            return


def run_terminal(conversation: Conversation, read: Read) -> None:
    """Answer messages until the end of the input, or until ^C twice in a row.

    Errors are shown, and the loop continues.

    Raises:
        GoldenGateError: the golden gate found that the model computes wrong results.
    """
    warned = False
    while True:
        conversation.model.require_right()
        try:
            line = read()
        except EOFError:
            return
        except KeyboardInterrupt:
            if warned:
                return
            warned = True
            conversation.screen.say("press ^C again to exit, or ^D, or type /exit", style="dim")
            continue
        warned = False
        try:
            for message in messages_of([line] if not line.lstrip().startswith(QUOTES) else line.split("\n")):
                if take_line(conversation, message) is Then.LEAVE:
                    return
        except KeyboardInterrupt:
            conversation.screen.say("stopped", style="dim")
        except GoldenGateError:
            raise
        except AnespecError as error:
            conversation.screen.error(str(error))
