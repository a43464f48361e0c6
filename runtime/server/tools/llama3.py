"""Llama 3's form: the answer is nothing but calls, `{"name": …, "parameters": {…}}`, with `;` between them.

The tag that its first versions put before them is a special token.
"""

from collections.abc import Collection, Sequence

from anespec.runtime.server.tools.form import ToolFunction, Write, call_rule, new_call_id
from anespec.runtime.server.tools.json_reader import read_call
from anespec.runtime.server.tools.source import Begun, Found, NoCall, Source

TAG = "<|python_tag|>"


class Llama3:
    """Objects without anything around them, so that only those that name a known function are calls."""

    begins = (TAG,)
    markers = (TAG,)
    bare = True

    def __init__(self, known: Collection[str]) -> None:
        self._known = frozenset(known)

    def new_id(self) -> str:
        """Any will do."""
        return new_call_id()

    def read(self, source: Source) -> Found:
        """All calls of the answer; with other text behind them they are none."""
        if not source.text.startswith("{"):
            yield from source.literal(TAG)
        while True:
            yield from source.space()
            yield from self._known_call(source)
            yield from source.space()
            if source.at == len(source.text):
                return
            if source.text.startswith(";", source.at):
                source.at += 1

    def _known_call(self, source: Source) -> Found:
        for found in read_call(source):
            if isinstance(found, Begun) and found.name not in self._known:
                raise NoCall
            yield found

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """The calls without the tag, as all versions write them."""
        calls = " | ".join(call_rule(function, "parameters") for function in functions)
        more = '("; " call)*' if parallel else ""
        return (
            f"calls: call {more}\n"
            f"call: {calls}\n"
            f"free: {write(TAG)}? calls | PLAIN\n"
            r"PLAIN: /([^{\s](?s:.*))?/" + "\n"
        )
