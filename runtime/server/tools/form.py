"""What a form of tool calls is: how a family of models writes them."""

import secrets
from typing import Protocol

from anespec.runtime.server.tools.source import Found, Source


class ToolForm(Protocol):
    """A form. `begins` are the texts that a call may begin with, `markers` those that may be special tokens.

    A form where calls may also begin without any is `bare`: then the answer's first character may begin one.
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
        """What stands at the source's beginning: one call or several.

        Raises:
            NoCall: there is none.
        """
        ...


def new_call_id() -> str:
    """An id such as OpenAI's."""
    return f"call_{secrets.token_hex(12)}"
