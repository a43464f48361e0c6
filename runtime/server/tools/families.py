"""Define the formats of tool calls by family of models, and choose the format of a model.

Formats with a tag for each argument are in `tagged`.
"""

import re
import secrets
import string
from collections.abc import Collection, Sequence

from anespec.runtime.server.tools.form import (
    ToolForm,
    ToolFunction,
    Write,
    call_rule,
    marked_rules,
    new_call_id,
    quoted,
)
from anespec.runtime.server.tools.json_reader import read_arguments, read_call
from anespec.runtime.server.tools.source import Begun, Found, NoCall, Source
from anespec.runtime.server.tools.tagged import GLM, QWEN_CODER, Tagged
from anespec.runtime.text.tokenizer import Tokenizer

_CALL, _END_OF_CALL = "<tool_call>", "</tool_call>"


class Hermes:
    """The format of Hermes, Qwen and many others: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    begins = (_CALL,)
    markers = (_CALL, _END_OF_CALL)
    bare = False

    def new_id(self) -> str:
        """Return an id in OpenAI's format; these templates accept any."""
        return new_call_id()

    def read(self, source: Source) -> Found:
        """Read one call."""
        yield from source.literal(_CALL)
        yield from source.space()
        yield from read_call(source)
        yield from source.space()
        yield from source.literal(_END_OF_CALL)

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """Return rules with each call on three lines, as in these families' training."""
        calls = " | ".join(call_rule(function, "arguments") for function in functions)
        return marked_rules(_CALL, f'"\\n" ({calls}) "\\n" {write(_END_OF_CALL)}', parallel, write)


_PYTHON_TAG = "<|python_tag|>"


class Llama3:
    """The format of Llama 3: an answer of calls alone, `{"name": …, "parameters": {…}}`, separated by `;`.

    Nothing marks them, so only objects that name a known function are calls. The tag that the first versions
    of Llama 3 write before them is a special token.
    """

    begins = (_PYTHON_TAG,)
    markers = (_PYTHON_TAG,)
    bare = True

    def __init__(self, known: Collection[str]) -> None:
        self._known = frozenset(known)

    def new_id(self) -> str:
        """Return an id in OpenAI's format; these templates accept any."""
        return new_call_id()

    def read(self, source: Source) -> Found:
        """Read all calls of the answer; if other text follows them, they are text."""
        if not source.text.startswith("{"):
            yield from source.literal(_PYTHON_TAG)
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
        """Return rules for calls without the tag, as all versions write them."""
        calls = " | ".join(call_rule(function, "parameters") for function in functions)
        more = '("; " call)*' if parallel else ""
        return (
            f"calls: call {more}\n"
            f"call: {calls}\n"
            f"free: {write(_PYTHON_TAG)}? calls | PLAIN\n"
            r"PLAIN: /([^{\s](?s:.*))?/" + "\n"
        )


_CALLS, _CALL_ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

_CALL_ID_LETTERS = string.ascii_letters + string.digits


class Mistral:
    """The formats of Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or
    `[TOOL_CALLS]name[ARGS]{…}`.

    Both are read, whichever the model's template writes.
    """

    begins = (_CALLS,)
    markers = (_CALLS, _CALL_ID, _ARGUMENTS)
    bare = False

    def __init__(self, named: bool) -> None:
        """`named`: the template writes the second format, with the name first."""
        self._named = named

    def new_id(self) -> str:
        """Return nine letters and digits, since the templates refuse other ids."""
        return "".join(secrets.choice(_CALL_ID_LETTERS) for _ in range(9))

    def read(self, source: Source) -> Found:
        """Read a list of calls, or one call."""
        yield from source.literal(_CALLS)
        yield from source.space()
        if source.text.startswith("[", source.at):
            yield from self._read_list(source)
            return
        name = yield from source.word()
        if (yield from source.literal(_CALL_ID, _ARGUMENTS)) == _CALL_ID:
            yield from source.word()
            yield from source.literal(_ARGUMENTS)
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
        """Return rules for the format that the template writes."""
        if self._named:
            arguments = write(_ARGUMENTS)
            calls = [f"{quoted(found.name)} {arguments} {found.arguments_rule}" for found in functions]
            return marked_rules(_CALLS, " | ".join(calls), parallel, write)
        call = " | ".join(call_rule(function, "arguments") for function in functions)
        more = '(", " entry)*' if parallel else ""
        return marked_rules(_CALLS, f'"[" entry {more} "]"', False, write) + f"entry: {call}\n"


_TOOLS = re.compile(r"\btools\b")


def takes_tools(template: str) -> bool:
    """Return whether a chat template supports tools."""
    return _TOOLS.search(template) is not None


def form_of(template: str, tokenizer: Tokenizer, functions: Sequence[ToolFunction]) -> ToolForm:
    """Return the format; Hermes', the most common one, by default. `functions` may be called."""
    known = [function.name for function in functions]
    for tags in (QWEN_CODER, GLM):
        if tags.key in template:
            return Tagged(tags, functions)
    if _CALL in template:
        return Hermes()
    if _CALLS in template:
        return Mistral(named=_ARGUMENTS in template)
    if _PYTHON_TAG in template or '"parameters": ' in template:
        return Llama3(known)
    if tokenizer.special_ids([_CALLS]):
        return Mistral(named=bool(tokenizer.special_ids([_ARGUMENTS])))
    if tokenizer.special_ids([_PYTHON_TAG]):
        return Llama3(known)
    return Hermes()
