"""The protocol of a format of tool calls, as a family of models writes them."""

import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from anespec.runtime.server.tools.functions import ToolFunction
from anespec.runtime.server.tools.source import Found, Source

Write = Callable[[str], str]
"""A marker in a Lark grammar: the special token of that text where there is one, else the text."""


class ToolForm(Protocol):
    """A form. `begins` are the texts that a call may begin with, `markers` those that may be special tokens.

    Where calls may also begin without any it is `bare`: then the answer's first character may begin one.
    """

    @property
    def begins(self) -> tuple[str, ...]: ...

    @property
    def markers(self) -> tuple[str, ...]: ...

    @property
    def bare(self) -> bool: ...

    def new_id(self) -> str:
        """The id of a new call, as this family's templates take it back."""
        ...

    def read(self, source: Source) -> Found:
        """Read one or several calls at the source's beginning.

        Raises:
            NoCall: there is none.
        """
        ...

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """Lark rules of `calls`, one or where `parallel` several, and of `free`: text, or text and calls."""
        ...


def new_call_id() -> str:
    """An id such as OpenAI's."""
    return f"call_{secrets.token_hex(12)}"


def marked_rules(begin: str, body: str, parallel: bool, write: Write) -> str:
    """The rules of a form whose calls each begin with a marker; `body` is what follows it."""
    marker = write(begin)
    more = "(gap call)*" if parallel else ""
    # A special token cannot be part of a text; of a marker that is text the first ends it.
    before = f"before: TEXT {marker}" if marker.startswith("<[") else f"before[suffix={marker}]: TEXT"
    return (
        f"calls: call {more}\n"
        f"call: {marker} body\n"
        f"free: TEXT | before body {more}\n"
        f"{before}\n"
        f"body: {body}\n"
        "gap: /[ \\n]{0,2}/\n"
        "TEXT: /(?s:.*)/\n"
    )
