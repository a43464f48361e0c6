"""Null in an optional field means that the field is absent, in the requests of every API."""

import json
from collections.abc import Iterator

import pytest
from bodies import body_types, required_of

from anespec.runtime.server.http.bodies import Body


def _optional() -> Iterator[tuple[type[Body], str, str]]:
    for kind in sorted(body_types(), key=lambda kind: kind.__qualname__):
        for name, field in kind.model_fields.items():
            if not field.is_required():
                yield kind, name, field.alias or name


def test_the_parts_of_bodies_are_found() -> None:
    names = {kind.__name__ for kind in body_types()}
    assert {
        "ChatBody",
        "MessageBody",
        "CalledFunction",
        "InputItem",
        "OllamaOptions",
        "ExtraFile",
        "MessagesBody",
    } <= names


@pytest.mark.parametrize(
    ("kind", "name", "key"), [pytest.param(*each, id=f"{each[0].__name__}.{each[2]}") for each in _optional()]
)
def test_null_is_absent(kind: type[Body], name: str, key: str) -> None:
    """The field alone decides: with null it has its default, whatever the required fields are."""
    adapter = kind.__pydantic_validator__
    found = adapter.validate_json(json.dumps({**required_of(kind), key: None}))
    assert getattr(found, name) == kind.model_fields[name].get_default(call_default_factory=True)
