"""The functions that an answer may call."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

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
        schema = {**(self.parameters or NOTHING), "x-guidance": {"whitespace_pattern": SPACE}}
        schema.setdefault("type", "object")
        return f"%json {json.dumps(schema)}"


def quoted(text: str) -> str:
    """A text in a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def call_rule(function: ToolFunction, key: str) -> str:
    """A call as a JSON object, with its arguments under `key`, in a Lark grammar."""
    head = quoted(f'{{"name": "{function.name}", "{key}": ')
    return f'{head} {function.arguments_rule} "}}"'
