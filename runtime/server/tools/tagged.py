"""Define the formats with a tag for each argument: Qwen3-Coder's, and GLM's since 4.5:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>
    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>

Texts are written verbatim, all other values as JSON; the function's schema says which one applies.
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
"""Python's words, which some templates write, and JSON's."""


@dataclass(frozen=True)
class Tags:
    """The texts before and after a call's name, and before and after each argument's key and value.

    `key_end` and `value` separate a key from its value. With `own_lines`, the first and last line breaks of a
    value are not part of it.
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
    """A format with a tag for each argument. `functions` are the functions with known schemas."""

    begins = (BEGIN,)
    bare = False

    def __init__(self, tags: Tags, functions: Sequence[ToolFunction]) -> None:
        self._tags = tags
        self._functions = {function.name: function for function in functions}

    @property
    def markers(self) -> tuple[str, ...]:
        """Return all tags that do not contain a name."""
        tags = self._tags
        found = (tags.key, tags.key_end, tags.value, tags.value_end, tags.end)
        return (BEGIN, END, *(tag for tag in found if tag.startswith("<") and tag.endswith(">")))

    def new_id(self) -> str:
        """Return an id in OpenAI's format; these templates accept any."""
        return new_call_id()

    def read(self, source: Source) -> Found:
        """Read one call. If the answer ends inside the call after a piece was reported, the rest is
        dropped."""
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
        """Return a value as JSON."""
        if self._tags.own_lines:
            value = value.removeprefix("\n").removesuffix("\n")
        function = self._functions.get(name)
        if function is None or not function.takes_text(key):
            found = _WORDS.get(value.strip(), value.strip())
            if _is_json(found):
                return found
        return json.dumps(value, ensure_ascii=False)

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """Return rules with the arguments in the schema's order, each on its own lines, as the templates
        write them.

        A text argument without an enumeration may have any length and content up to its end tag.
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
        """Yield the rules of an argument; the rule of a text ends with its end tag."""
        tags = self._tags
        if tags.value:
            head = f'{write(tags.key)} {quoted(key)} {write(tags.key_end)} "\\n" {write(tags.value)}'
        else:
            head = quoted(f"{tags.key}{key}{tags.key_end}\n")
        end = write(tags.value_end)
        line = "\n" if tags.own_lines else ""
        texts = function.texts(key)
        if function.takes_text(key) and not texts:
            # A special token cannot be part of the text. If the tag is plain text, its first occurrence ends
            # the text.
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
    """Refuse NaN and infinities, which Python's parser accepts although they are not JSON."""
    raise ValueError(constant)
