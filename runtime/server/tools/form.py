"""Define the protocol of a format of tool calls, and helpers for its grammar."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from anespec.runtime.sampling.json_schemas import enforceable
from anespec.runtime.server.tools.source import Found, Source

# The functions that an answer may call.

SPACE = " ?"
"""The white space between two JSON tokens of arguments: models write them on one line."""

NOTHING: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolFunction:
    """A function that an answer may call.

    `parameters` is the JSON schema of its arguments, None if it has none. `strict`: calls must match the
    schema even if the model need not call anything.
    """

    name: str
    parameters: Mapping[str, object] | None = None
    strict: bool = False

    @property
    def arguments_rule(self) -> str:
        """Return the rule of the arguments in a Lark grammar."""
        return _json_rule({"type": "object", **(self.parameters or NOTHING)})

    @property
    def properties(self) -> Mapping[str, object]:
        """Return the schemas of the arguments by name, as far as the schema lists them."""
        found = (self.parameters or NOTHING).get("properties")
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> Sequence[object]:
        """Return the names of required arguments."""
        found = (self.parameters or NOTHING).get("required")
        return found if isinstance(found, list) else ()

    def texts(self, name: str) -> Sequence[str]:
        """Return the allowed texts of an argument, if its schema is an enumeration of texts; else ()."""
        schema = self.properties.get(name)
        if not isinstance(schema, Mapping):
            return ()
        found = schema.get("enum", [schema["const"]] if "const" in schema else [])
        all_are_texts = isinstance(found, list) and all(isinstance(value, str) for value in found)
        return found if all_are_texts else ()

    def takes_text(self, name: str) -> bool:
        """Return whether an argument is always a text."""
        schema = self.properties.get(name)
        return isinstance(schema, Mapping) and (schema.get("type") == "string" or bool(self.texts(name)))


def quoted(text: str) -> str:
    """Quote a text for a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def call_rule(function: ToolFunction, key: str) -> str:
    """Return the Lark rule of a call as a JSON object, with its arguments under `key`."""
    head = quoted(f'{{"name": "{function.name}", "{key}": ')
    return f'{head} {function.arguments_rule} "}}"'


def value_rule(function: ToolFunction, name: str) -> str:
    """Return the Lark rule of an argument's value as JSON; its schema may refer to definitions of the whole
    schema."""
    whole = function.parameters or NOTHING
    own = function.properties.get(name)
    shared = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return _json_rule({**shared, **own}) if isinstance(own, Mapping) else _json_rule({})


def _json_rule(schema: Mapping[str, object]) -> str:
    found = enforceable({**schema, "x-guidance": {"whitespace_pattern": SPACE}})
    return f"%json {json.dumps(found)}"


Write = Callable[[str], str]
"""A function that returns a marker for a Lark grammar: the special token of a text if there is one, else the
text."""


class ToolForm(Protocol):
    """A format of tool calls.

    `begins` are the texts that a call may begin with; `markers` are the texts that may be special tokens.
    `bare` means that a call may also begin without any of them, at the first character of the answer.
    """

    @property
    def begins(self) -> tuple[str, ...]: ...

    @property
    def markers(self) -> tuple[str, ...]: ...

    @property
    def bare(self) -> bool: ...

    def new_id(self) -> str:
        """Return an id for a new call that this family's templates accept."""
        ...

    def read(self, source: Source) -> Found:
        """Read one or several calls at the beginning of the source.

        Raises:
            NoCall: the source does not begin with a call.
        """
        ...

    def rules(self, functions: Sequence[ToolFunction], parallel: bool, write: Write) -> str:
        """Return the Lark rules `calls` (one call, or several if `parallel`) and `free` (text, or text and
        calls)."""
        ...


def new_call_id() -> str:
    """Return a new id in OpenAI's format."""
    return f"call_{secrets.token_hex(12)}"


def marked_rules(begin: str, body: str, parallel: bool, write: Write) -> str:
    """Return the rules of a format whose calls each begin with a marker, followed by `body`."""
    marker = write(begin)
    more = "(gap call)*" if parallel else ""
    # A special token cannot be part of the text. If the marker is plain text, its first occurrence ends the
    # text.
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
