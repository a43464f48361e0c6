"""Forms that have a tag for each argument: Qwen3-Coder's, and that of GLM since 4.5.

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>
    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>

Texts stand as they are, anything else as JSON; the function's schema says which of both a value is.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anespec.runtime.server.tools.form import (
    ToolFunction,
    Write,
    marked_rules,
    new_call_id,
    quoted,
    value_rule,
)
from anespec.runtime.server.tools.json_reader import LONGEST_NAME
from anespec.runtime.server.tools.source import Begun, Found, NoCall, Piece, Source

BEGIN, END = "<tool_call>", "</tool_call>"

_WORDS = {"True": "true", "False": "false", "None": "null"}
"""As a template may have written them."""


@dataclass(frozen=True)
class Tags:
    """What stands around the parts of a call: before and behind its name, and each argument's key and value.

    `value` and `key_end` part a key from its value. With `own_lines` a value's first and last line end are
    no part of it.
    """

    name: str
    name_end: str
    key: str
    key_end: str
    value: str
    value_end: str
    end: str
    own_lines: bool


QWEN_CODER = Tags("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", own_lines=True)
GLM = Tags("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "", own_lines=False)


class Tagged:
    """A tag for each argument. `functions` are those whose schemas are known."""

    begins = (BEGIN,)
    bare = False

    def __init__(self, tags: Tags, functions: Sequence[ToolFunction]) -> None:
        self._tags = tags
        self._functions = {function.name: function for function in functions}

    @property
    def markers(self) -> tuple[str, ...]:
        """All tags that are not written together with a name."""
        tags = self._tags
        found = (tags.key, tags.key_end, tags.value, tags.value_end, tags.end)
        return (BEGIN, END, *(tag for tag in found if tag.startswith("<") and tag.endswith(">")))

    def new_id(self) -> str:
        """Any will do."""
        return new_call_id()

    def read(self, source: Source) -> Found:
        """One call. What the answer's end cuts off is no text where a part of the call was told."""
        try:
            yield from self._read(source)
        except NoCall:
            if source.ended:
                source.at = len(source.text)
            raise

    def _read(self, source: Source) -> Found:
        tags = self._tags
        yield from source.literal(BEGIN)
        yield from source.space()
        yield from source.literal(tags.name)
        name = yield from source.word()
        yield from source.literal(tags.name_end)
        yield Begun(name)
        keys: list[str] = []
        while True:
            yield from source.space()
            if (yield from source.literal(tags.key, tags.end or END)) != tags.key:
                break
            key = yield from source.until(tags.key_end)
            if key in keys or not 0 < len(key) <= LONGEST_NAME or not key.isprintable():
                raise NoCall
            if tags.value:
                yield from source.space()
                yield from source.literal(tags.value)
            value = yield from source.until(tags.value_end)
            yield Piece(f"{', ' if keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            yield Piece(self._written(name, key, value))
            keys.append(key)
        if tags.end:
            yield from source.space()
            yield from source.literal(END)
        yield Piece("}" if keys else "{}")

    def _written(self, name: str, key: str, value: str) -> str:
        """A value as JSON."""
        if self._tags.own_lines:
            value = value.removeprefix("\n").removesuffix("\n")
        function = self._functions.get(name)
        if function is None or not function.takes_text(key):
            found = _WORDS.get(value.strip(), value.strip())
            if _is_json(found):
                return found
        return json.dumps(value, ensure_ascii=False)

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """Arguments in the order of the schema, each on lines of its own, as the templates write them.

        Of a text that is free nothing but its end is said: no length, and no pattern.
        """
        named = {f"f{number}": function for number, function in enumerate(functions)}
        body = f"({' | '.join(named)}) {write(END)}"
        own = [rule for name in named for rule in self._function_rules(name, named[name], write)]
        return marked_rules(BEGIN, body, parallel, write) + "".join(f"{rule}\n" for rule in own)

    def _function_rules(self, rule: str, function: ToolFunction, write: Write) -> Iterator[str]:
        tags = self._tags
        arguments = []
        for number, key in enumerate(function.properties):
            name = f"{rule}p{number}"
            arguments.append(name if key in function.required else f"{name}?")
            yield from self._argument_rules(name, function, key, write)
        if tags.end:
            head = quoted(f"\n{tags.name}{function.name}{tags.name_end}\n")
            end = f'{write(tags.end)} "\\n"'
        else:
            head, end = quoted(f"{function.name}\n"), ""
        yield f"{rule}: {head} {' '.join(arguments)} {end}"

    def _argument_rules(self, rule: str, function: ToolFunction, key: str, write: Write) -> Iterator[str]:
        """The rules of one argument; a text's own rule ends with what ends the text."""
        tags = self._tags
        if tags.value:
            head = f'{write(tags.key)} {quoted(key)} {write(tags.key_end)} "\\n" {write(tags.value)}'
        else:
            head = quoted(f"{tags.key}{key}{tags.key_end}\n")
        end = write(tags.value_end)
        line = "\n" if tags.own_lines else ""
        texts = function.texts(key)
        if function.takes_text(key) and not texts:
            # A special token cannot be part of a text; of a tag that is text the first ends it.
            is_token = end.startswith("<[")
            value = f"TEXT {end}" if is_token else f"{rule}v"
            if not is_token:
                yield f"{rule}v[suffix={quoted(line + tags.value_end)}]: TEXT"
        else:
            value = f"({' | '.join(map(quoted, texts))})" if texts else value_rule(function, key)
            value = f"{value} {quoted(line)} {end}"
        yield f'{rule}: {head} {value} "\\n"'


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    """Python reads NaN and infinities, which JSON has not."""
    raise ValueError(constant)
