"""The protocol of a format of tool calls, as a family of models writes them."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from anespec.runtime.server.tools.source import Found, Source

# The functions that an answer may call.

SPACE = " ?"
"""What may stand between two tokens of arguments: models write them on one line."""

NOTHING: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolFunction:
    """One function; `parameters` is the JSON schema of its arguments, None where it takes none.

    `strict`: its calls must fit the schema, also where the model need not call anything.
    """

    name: str
    parameters: Mapping[str, object] | None = None
    strict: bool = False

    @property
    def arguments_rule(self) -> str:
        """Its arguments in a Lark grammar."""
        return _json_rule({"type": "object", **(self.parameters or NOTHING)})

    @property
    def properties(self) -> Mapping[str, object]:
        """The schemas of its arguments, by name, as far as it says them one by one."""
        found = (self.parameters or NOTHING).get("properties")
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> Sequence[object]:
        """The names of those that must be given."""
        found = (self.parameters or NOTHING).get("required")
        return found if isinstance(found, list) else ()

    def texts(self, name: str) -> Sequence[str]:
        """The texts that an argument may be, where the schema names them all and nothing else."""
        schema = self.properties.get(name)
        if not isinstance(schema, Mapping):
            return ()
        found = schema.get("enum", [schema["const"]] if "const" in schema else [])
        all_are_texts = isinstance(found, list) and all(isinstance(value, str) for value in found)
        return found if all_are_texts else ()

    def takes_text(self, name: str) -> bool:
        """Whether an argument is always a text."""
        schema = self.properties.get(name)
        return isinstance(schema, Mapping) and (schema.get("type") == "string" or bool(self.texts(name)))


def quoted(text: str) -> str:
    """A text in a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def call_rule(function: ToolFunction, key: str) -> str:
    """A call as a JSON object, with its arguments under `key`, in a Lark grammar."""
    head = quoted(f'{{"name": "{function.name}", "{key}": ')
    return f'{head} {function.arguments_rule} "}}"'


def value_rule(function: ToolFunction, name: str) -> str:
    """One argument's value as JSON, in a Lark grammar; what its schema refers to may stand in the whole."""
    whole = function.parameters or NOTHING
    own = function.properties.get(name)
    shared = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return _json_rule({**shared, **own}) if isinstance(own, Mapping) else _json_rule({})


def _json_rule(schema: Mapping[str, object]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': SPACE}})}"


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
