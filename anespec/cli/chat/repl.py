"""The loops: lines out of a pipe, or out of a terminal."""

from collections.abc import Callable, Iterable, Iterator

from anespec.cli.chat.commands import Then, take_line
from anespec.cli.chat.conversation import Conversation
from anespec.cli.prompts import LONGEST_PROMPT
from anespec.system.errors import AnespecError, GoldenGateError, RequestError
from anespec.system.formatting import bytes_text

QUOTES = '"""'
"""Before and after a message of several lines."""

Read = Callable[[], str]
"""Asks for a message. Raises EOFError at the end, KeyboardInterrupt at ^C."""


def messages_of(lines: Iterable[str]) -> Iterator[str]:
    """The messages in lines of text: one each, but for what stands between quotes.

    Raises RequestError for quotes that are not closed within LONGEST_PROMPT characters.
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
    """Whether Enter sends what is typed: quotes that were opened must be closed."""
    begun = text.lstrip()
    return not begun.startswith(QUOTES) or QUOTES in begun.removeprefix(QUOTES)


def run_lines(conversation: Conversation, lines: Iterable[str]) -> None:
    """Answer each message, and end with the first that cannot be; raises like `take_line`."""
    for message in messages_of(lines):
        if take_line(conversation, message) is Then.LEAVE:
            return


def run_terminal(conversation: Conversation, read: Read) -> None:
    """Answer messages until the end of the input, or until ^C twice in a row.

    Errors are shown, and the loop continues.

    Raises:
        GoldenGateError: it turned out that the model computes what it should not.
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
            conversation.screen.say("^C again leaves, as does ^D or /exit", style="dim")
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
