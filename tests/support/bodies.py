"""The types of the daemon's request bodies, and the least that a request of each needs."""

from typing import Any, get_args

from pydantic import BaseModel

from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.http.bodies import Body


def body_types() -> set[type[Body]]:
    """All types of bodies, with the types of their parts."""
    found: set[type[Body]] = set()
    waiting: list[Any] = [endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if issubclass(kind, Body) and kind not in found:
                found.add(kind)
                waiting += [field.annotation for field in kind.model_fields.values()]
        else:
            waiting += get_args(kind)
    return found


def required_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The required fields of a body, as JSON values."""
    return {
        field.alias or name: _example(field.annotation)
        for name, field in kind.model_fields.items()
        if field.is_required()
    }


def _example(kind: Any) -> Any:
    """A JSON value of a required field's type."""
    if get_args(kind) and kind.__class__.__name__ == "_LiteralGenericAlias":
        return get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return required_of(kind)
    for simple, value in ((str, "text"), (int, 1), (bool, True)):
        if kind is simple:
            return value
    parts = get_args(kind)
    if str(kind).startswith("list"):
        return [_example(parts[0])]
    return _example(parts[0])
