"""A valid schema is followed as far as a grammar can, and only `strict` asks for more."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.sampling.grammar_check import _tried
from anespec.runtime.sampling.json_schemas import ANNOTATIONS, FORMATS, UnenforceableError, enforceable
from anespec.runtime.sampling.parameters import Grammar


def is_followed(schema: object) -> bool:
    return "native" in _tried(Grammar(kind="json_schema", text=json.dumps(schema)))


FREE: list[dict[str, Any]] = [
    *({"type": "string", "format": name} for name in ("password", "binary", "file-path", "phone", "color")),
    *({"type": "string", "format": name} for name in ("idn-email", "regex", "uri-reference", "iri", "byte")),
    *({"type": "number", "format": name} for name in ("int32", "int64", "float", "double")),
    *({"type": "string", name: "x"} for name in sorted(ANNOTATIONS)),
    {"type": "array", "uniqueItems": False},
    {"type": "object", "unevaluatedProperties": True, "dependentRequired": {}},
    {"type": "string", "then": False, "minContains": 3, "not": False},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "object", "properties": {"format": {"type": "string"}, "not": {"type": "null"}}},
    {"enum": [{"not": 1, "format": "password"}]},
]
"""Schemas in which nothing is beyond a grammar."""

BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"not": {"type": "string"}}, "not"),
    ({"if": {"type": "string"}, "then": {}, "else": {}}, "if"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({"dependencies": {"a": ["b"]}}, "dependencies"),
    ({"propertyNames": {"pattern": "^a"}}, "propertyNames"),
    ({"contains": {"type": "string"}, "minContains": 2}, "contains"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"unevaluatedItems": False}, "unevaluatedItems"),
    ({"$dynamicRef": "#a"}, "$dynamicRef"),
    ({"$recursiveRef": "#"}, "$recursiveRef"),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "minProperties"),
    ({"type": "string", "pattern": r"^(?!a)[a-z]+$"}, "pattern"),
    ({"type": "string", "pattern": r"\bword\b"}, "pattern"),
    ({"type": "object", "patternProperties": {"^(?=a)": {}, "^b": {}}}, "patternProperties"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"oneOf": [{"type": "string"}, {}], "anyOf": [{"type": "string"}]}, "oneOf"),
]


@pytest.mark.parametrize("schema", FREE, ids=json.dumps)
def test_what_constrains_nothing_is_no_error_even_if_strict(schema: dict[str, Any]) -> None:
    assert is_followed(schema)
    enforceable(schema, strict=True)


@pytest.mark.parametrize(("schema", "keyword"), BEYOND, ids=lambda value: json.dumps(value)[:40])
def test_what_cannot_be_enforced_is_refused_only_if_strict(schema: dict[str, Any], keyword: str) -> None:
    assert is_followed(schema)
    for place in (
        {"properties": {"a": {"items": schema}}},
        {"$defs": {"x": schema}},
        {"anyOf": [{}, schema]},
        {"components": {"schemas": {"X": schema}}},
    ):
        assert is_followed(place)
        with pytest.raises(UnenforceableError, match=f"the keyword {keyword.replace('$', '.')} of ") as error:
            enforceable(place, strict=True)
        assert error.value.keyword == keyword
    with pytest.raises(UnenforceableError, match=r"of a\.items cannot be enforced") as error:
        enforceable({"properties": {"a": {"items": schema}}}, strict=True)
    assert error.value.path == ("a", "items")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_formats_that_are_known_are_enforced(name: str) -> None:
    assert enforceable({"format": name}) == {"format": name}
    assert is_followed({"type": "string", "format": name})


@pytest.mark.parametrize("schema", [{"type": "foo"}, {"format": 5}, {"enum": []}, {"required": "a"}, 3, "a"])
def test_what_is_no_schema_stays_an_error(schema: object) -> None:
    assert not is_followed(schema)


PLAIN = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, True, {"enum": ["a", 1]}, {"const": None}]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}}, inner, inner),
        st.builds(lambda a: {"type": "array", "items": a}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=8,
)


@given(schema=PLAIN)
def test_what_can_be_enforced_is_left_as_it_is(schema: object) -> None:
    assert enforceable(schema) == enforceable(schema, strict=True) == schema
