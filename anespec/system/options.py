"""Declare options once, as the fields of a pydantic model: type, range, default and description.

The command line, JSON lines and the Python API are derived from them.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from anespec.system.errors import RequestError
from anespec.system.formatting import listed, printable, quoted, shown

_SIZE = TypeAdapter(ByteSize)


@dataclass(frozen=True)
class Flag:
    """A field's settings for the command line, beyond its type, range, default and description.

    `names` are the flags (default: the field's name); `metavar` stands for the value in `--help`. `default`
    describes the effect of None. `choices` are the allowed values, if the type does not list them. `former`
    are values that are no longer allowed, each with a sentence that names the replacement. A `multiple` flag
    may be given several times, once for each value. `shown` is False for a field without a flag.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    default: str | None = None
    choices: tuple[str, ...] = ()
    former: tuple[tuple[str, str], ...] = ()
    multiple: bool = False
    shown: bool = True


class Options(BaseModel):
    """The base class of all options: immutable, without unknown names, and with one-sentence errors.

    Raises from the constructor:
        RequestError: a value has the wrong type or is out of range, or there is no such option.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_sentence(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            found = handler(value)
        except ValidationError as error:
            raise RequestError(complaint(error, cls)) from None
        for name in found.model_fields_set:
            given = getattr(found, name)
            if isinstance(given, Path) and "\0" in str(given):
                raise RequestError(f"{name} is {shown(str(given))}; no file can have a name with a NUL")
        return found

    def with_changes(self, **changes: object) -> Self:
        """Return these options with some values replaced.

        Raises:
            RequestError: as the constructor does.
        """
        if not changes:
            return self
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**kept, **changes})


@dataclass(frozen=True)
class Range:
    """The numbers from `lowest` to `highest`, inclusive. None means no limit. NaN is in no range."""

    lowest: float | None = None
    highest: float | None = None

    def __contains__(self, value: float) -> bool:
        above = self.lowest is None or value >= self.lowest
        return above and (self.highest is None or value <= self.highest) and value == value

    @property
    def demand(self) -> str:
        """Return the clause for messages, e.g. `lie between 0 and 1`."""
        return f"be {self}" if None in (self.lowest, self.highest) else f"lie {self}"

    def __str__(self) -> str:
        if self.lowest is None and self.highest is None:
            return "a number"
        if self.highest is None:
            return f"at least {_number(self.lowest)}"
        if self.lowest is None:
            return f"at most {_number(self.highest)}"
        return f"between {_number(self.lowest)} and {_number(self.highest)}"


def _number(value: float | None) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def read_size(value: Any) -> Any:
    """Convert a text such as `500MB` to a count of bytes; other values are returned unchanged.

    Raises:
        RequestError: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    try:
        return int(_SIZE.validate_python(value))
    except (ValidationError, OverflowError):
        raise RequestError(f"{quoted(value)} is not a size such as 500MB or 3GB") from None


def range_of(field: FieldInfo) -> Range | None:
    """Return the allowed numbers of a field; None if it has no limits."""
    limits: dict[str, Any] = {}
    for part in _metadata(field):
        if isinstance(part, Ge):
            limits["lowest"] = part.ge
        if isinstance(part, Le):
            limits["highest"] = part.le
    return Range(**limits) if limits else None


def flag_of(field: FieldInfo) -> Flag:
    """Return the field's settings for the command line."""
    return next((part for part in _metadata(field) if isinstance(part, Flag)), Flag())


def type_of(field: FieldInfo) -> Any:
    """Return the field's type, without None and annotations."""
    return _bare(field.annotation)


def _bare(annotation: Any) -> Any:
    if hasattr(annotation, "__metadata__"):
        return _bare(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        options = [option for option in get_args(annotation) if option is not type(None)]
        return _bare(options[0]) if len(options) == 1 else annotation
    return annotation


def _metadata(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    yield from _inner_metadata(field.annotation)


def _inner_metadata(annotation: Any) -> Iterator[Any]:
    for part in getattr(annotation, "__metadata__", ()):
        yield from part.metadata if isinstance(part, FieldInfo) else (part,)
    if get_origin(annotation) in (Union, types.UnionType):
        for option in get_args(annotation):
            yield from _inner_metadata(option)


def complaint(error: ValidationError, model: type[BaseModel], noun: str = "option") -> str:
    """Return the first validation error as one sentence; `noun` is the word for the model's fields."""
    first = error.errors(include_url=False)[0]
    name, *inner = map(str, first["loc"] or ("",))
    value, kind = first["input"], first["type"]
    text = shown(value)
    if kind == "extra_forbidden" and not inner:
        return f"there is no {noun} {quoted(name)}; the {noun}s are {listed(list(model.model_fields))}"
    if kind == "missing":
        return f"{printable('.'.join((name, *inner)))} is missing"
    field = model.model_fields.get(name) if not inner else None
    allowed = range_of(field) if field is not None else None
    if kind == "multiple_of":
        between = f" {allowed}" if allowed is not None else ""
        return f"{name} is {text}; it must be a multiple of {first['ctx']['multiple_of']}{between}"
    if field is not None and allowed is not None:
        if kind in ("greater_than_equal", "less_than_equal", "finite_number"):
            return f"{name} is {text}; it must {allowed.demand}"
        return (
            f"{name} is {text}; it must be {'an integer' if type_of(field) is int else 'a number'} {allowed}"
        )
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{printable('.'.join((name, *inner)))} is {text}: {message}" if name else message
