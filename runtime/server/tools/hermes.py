"""Hermes' form, and that of Qwen and many others: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from collections.abc import Sequence

from anespec.runtime.server.tools.form import ToolFunction, Write, call_rule, marked_rules, new_call_id
from anespec.runtime.server.tools.json_reader import read_call
from anespec.runtime.server.tools.source import Found, Source

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes:
    """An object between tags for each call."""

    begins = (BEGIN,)
    markers = (BEGIN, END)
    bare = False

    def new_id(self) -> str:
        """Any will do."""
        return new_call_id()

    def read(self, source: Source) -> Found:
        """One call."""
        yield from source.literal(BEGIN)
        yield from source.space()
        yield from read_call(source)
        yield from source.space()
        yield from source.literal(END)

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """Each call on three lines, as these families were taught it."""
        calls = " | ".join(call_rule(function, "arguments") for function in functions)
        return marked_rules(BEGIN, f'"\\n" ({calls}) "\\n" {write(END)}', parallel, write)
