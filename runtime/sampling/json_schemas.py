"""Reduce a JSON schema to the keywords that a grammar can enforce.

JSON Schema lets a validator ignore what it does not know. llguidance refuses it instead, so a valid schema
with `uniqueItems` or `format: password` would be called invalid.
"""

import re
from collections.abc import Mapping

from anespec.system.errors import GrammarError

FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
"""The formats of strings that llguidance enforces. JSON Schema lets all others constrain nothing."""

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "contentEncoding", "contentMediaType", "contentSchema", "externalDocs", "xml"),
        *("$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "enumNames", "enumDescriptions"),
    }
)
"""The keywords that constrain nothing."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("uniqueItems", "not"), (False,)),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "propertyNames"), (True, {})),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
    **dict.fromkeys(("if", "then", "else", "contains", "minContains", "maxContains"), ()),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), ()),
}
"""The keywords that llguidance cannot enforce, and the values with which they constrain nothing."""

_NEEDS = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""Keywords that constrain nothing without another one."""

_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DATA = frozenset({"const", "enum", "required", "type", "x-guidance", "discriminator"})
"""Keywords whose values are no schemas."""

_KEPT = frozenset({"oneOf", "patternProperties"})
"""Keywords of which a part can be enforced."""

_LOOKS = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[bBAZzGkc1-9]|\(\?<?[=!])")
"""The parts of a regular expression that no grammar follows: it looks around, or back at a group."""


class UnenforceableError(GrammarError):
    """A schema has a keyword that cannot be enforced; `path` leads to its place in the schema."""

    def __init__(self, path: tuple[str, ...], keyword: str) -> None:
        where = f"of {'.'.join(path)}" if path else "of the schema itself"
        super().__init__(
            f"the keyword {keyword} {where} cannot be enforced; leave it out, or do not ask for strict"
        )
        self.path = path
        self.keyword = keyword


def enforceable(schema: object, *, strict: bool = False, path: tuple[str, ...] = ()) -> object:
    """Return a schema without keywords that constrain nothing, and without those that cannot be enforced.

    What is not a schema is returned unchanged, for llguidance to refuse. `path` leads to the schema, for
    errors: the names of properties, and the keywords between them.

    Raises:
        UnenforceableError: a keyword constrains something and cannot be enforced, and `strict` is True.
    """
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, object] = {}
    for keyword, value in schema.items():
        is_beyond = _is_beyond(schema, keyword, value)
        if is_beyond and strict:
            raise UnenforceableError(path, keyword)
        is_free = keyword in ANNOTATIONS or keyword in NEUTRAL
        is_unknown = keyword == "format" and isinstance(value, str) and value not in FORMATS
        if not (is_free or is_unknown or (is_beyond and keyword not in _KEPT)):
            found[keyword] = _part(keyword, value, strict, path)
    if "oneOf" in found:
        _approximate(found)
    return found


def _part(keyword: str, value: object, strict: bool, path: tuple[str, ...]) -> object:
    """Return the value of a keyword, with the schemas in it reduced."""
    if keyword in _DATA:
        return value
    below = (*path, keyword)
    if isinstance(value, list) and keyword in _SEVERAL:
        return [
            enforceable(each, strict=strict, path=(*below, str(place))) for place, each in enumerate(value)
        ]
    if isinstance(value, Mapping) and keyword in _NAMED:
        own = path if keyword == "properties" else below
        return {
            name: enforceable(each, strict=strict, path=(*own, name))
            for name, each in value.items()
            if keyword != "patternProperties" or _LOOKS.search(name) is None
        }
    # Unknown keywords may have schemas, too, since a reference may lead there.
    return enforceable(value, strict=strict, path=below)


def _is_beyond(schema: Mapping[str, object], keyword: str, value: object) -> bool:
    """Return whether a keyword of a schema constrains something and cannot be enforced."""
    match keyword:
        case "pattern":
            return isinstance(value, str) and _LOOKS.search(value) is not None
        case "patternProperties":
            return isinstance(value, Mapping) and any(map(_LOOKS.search, value))
        case "minProperties" | "maxProperties":
            return _has_optional(schema)
        case "oneOf":
            return isinstance(value, list) and not _are_apart(schema, value)
        case _:
            is_bound = _NEEDS.get(keyword, keyword) in schema
            return keyword in NEUTRAL and is_bound and value not in NEUTRAL[keyword]


def _has_optional(schema: Mapping[str, object]) -> bool:
    """Return whether a property is not required; then llguidance cannot count properties."""
    properties, required = schema.get("properties"), schema.get("required")
    named = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    return isinstance(properties, Mapping) and any(name not in named for name in properties)


def _are_apart(schema: Mapping[str, object], choices: list[object]) -> bool:
    """Return whether no value fits two choices: they have different types, or are told apart by a field."""
    if "discriminator" in schema:
        return True
    types: list[str] = []
    for choice in choices:
        found = choice.get("type") if isinstance(choice, Mapping) else None
        names = found if isinstance(found, list) else [found]
        types += ["number" if name == "integer" else str(name) for name in names]
    return "None" not in types and len(set(types)) == len(types)


def _approximate(schema: dict[str, object]) -> None:
    """Replace `oneOf` by `anyOf`: the same where no value fits two choices, and else as near as it gets."""
    choices = schema.pop("oneOf")
    if "anyOf" not in schema:
        schema["anyOf"] = choices
        return
    whole = schema.get("allOf")
    schema["allOf"] = [*(whole if isinstance(whole, list) else ()), {"anyOf": choices}]
