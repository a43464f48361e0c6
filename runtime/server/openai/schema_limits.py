"""Check free-form JSON in a request, such as a schema, before it is processed: its size, and its keywords."""

import json
from collections.abc import Mapping

from anespec.runtime.sampling.json_schemas import UnenforceableError, enforceable
from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.runtime.server.http.errors import ApiError

MOST_VALUES = 20_000
MOST_DEEP = 32
MOST_CHARACTERS = 200_000


def require_modest(value: object, place: str) -> None:
    """Raise ApiError, naming the `place`, if a JSON value is too large or nested too deeply."""
    values = characters = depth = 0
    level = [value]
    while level:
        depth += 1
        values += len(level)
        characters += sum(len(item) for item in level if isinstance(item, str))
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                characters += sum(map(len, item))
                below += item.values()
            elif isinstance(item, list):
                below += item
        if values + len(below) > MOST_VALUES or characters > MOST_CHARACTERS or depth > MOST_DEEP:
            raise ApiError(
                400,
                f"{place} is larger than {MOST_VALUES} values or {MOST_CHARACTERS} characters, "
                f"or is nested deeper than {MOST_DEEP}; simplify it",
                "invalid_value",
                place,
            )
        level = below


def schema_grammar(schema: Mapping[str, object], place: str) -> Grammar:
    """Return the grammar of JSON that matches a schema. Raises ApiError as `require_modest` does."""
    require_modest(schema, place)
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))


def require_enforceable(schema: object, place: str, owner: str = "") -> None:
    """Raise ApiError if a strict schema has a keyword that cannot be enforced.

    The error names the `place` of the schema in the request, the keyword with its place in the schema, and
    the `owner`, such as the function.
    """
    try:
        enforceable(schema, strict=True)
    except UnenforceableError as error:
        whose = f" ({owner})" if owner else ""
        raise ApiError(400, f"{place}{whose}: {error}", "unsupported_value", place) from None
