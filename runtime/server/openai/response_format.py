"""The requested format of the answer."""

import json
from typing import Any, Literal

from pydantic import Field

from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.runtime.server.bodies import Body
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.openai.schema_limits import require_modest


class JsonSchemaBody(Body):
    """A schema, and its name. With `strict` or without, the answer fits it."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The format: any text, any JSON object, or JSON that fits a schema (which llama-server allows here,
    too)."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @property
    def grammar(self) -> Grammar | None:
        """The grammar of the answer. Raises ApiError if the schema is missing or too large."""
        if self.type == "text":
            return None
        schema = self.schema_
        if self.type == "json_schema":
            schema = self.json_schema.schema_ if self.json_schema is not None else schema
            if schema is None:
                raise ApiError(
                    400, "a json_schema needs its schema", "invalid_value", "response_format.json_schema"
                )
        require_modest(schema, "response_format")
        # A schema that says less is one of any JSON value, and this form is of objects.
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema or {"type": "object"}))
