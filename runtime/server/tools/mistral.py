"""Mistral's forms: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and `[TOOL_CALLS]name[ARGS]{…}`.

Both are read, whichever a model's template writes.
"""

import secrets
import string
from collections.abc import Sequence

from anespec.runtime.server.tools.form import ToolFunction, Write, call_rule, marked_rules, quoted
from anespec.runtime.server.tools.json_reader import read_arguments, read_call
from anespec.runtime.server.tools.source import Found, Source

BEGIN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_ALPHABET = string.ascii_letters + string.digits


class Mistral:
    """A marker, then a list of calls or a name."""

    begins = (BEGIN,)
    markers = (BEGIN, ID, ARGUMENTS)
    bare = False

    def __init__(self, named: bool) -> None:
        """`named`: the template writes the name first."""
        self._named = named

    def new_id(self) -> str:
        """Nine letters and digits: templates refuse others."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(9))

    def read(self, source: Source) -> Found:
        """A list of calls, or one call."""
        yield from source.literal(BEGIN)
        yield from source.space()
        if source.text.startswith("[", source.at):
            yield from self._read_list(source)
            return
        name = yield from source.word()
        if (yield from source.literal(ID, ARGUMENTS)) == ID:
            yield from source.word()
            yield from source.literal(ARGUMENTS)
        yield from source.space()
        yield from read_arguments(source, name)

    def _read_list(self, source: Source) -> Found:
        yield from source.literal("[")
        while True:
            yield from source.space()
            yield from read_call(source)
            yield from source.space()
            if (yield from source.literal(",", "]")) == "]":
                return

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """As the template writes them."""
        if self._named:
            arguments = write(ARGUMENTS)
            calls = [f"{quoted(found.name)} {arguments} {found.arguments_rule}" for found in functions]
            return marked_rules(BEGIN, " | ".join(calls), parallel, write)
        call = " | ".join(call_rule(function, "arguments") for function in functions)
        more = '(", " entry)*' if parallel else ""
        return marked_rules(BEGIN, f'"[" entry {more} "]"', False, write) + f"entry: {call}\n"
