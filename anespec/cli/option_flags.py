"""Command line flags made from options that are declared once (system.options)."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

import click
from click.core import ParameterSource
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from anespec.system.errors import RequestError
from anespec.system.formatting import bytes_text, quoted
from anespec.system.options import Flag, Options, Range, flag_of, range_of, type_of

# Find the origin of an option's value: a flag, the environment, a configuration file, or the default.

PREFIX = "ANESPEC"
"""The prefix of environment variables that set options: ANESPEC_SERVE_PORT is --port of `serve`."""


def origin_of(context: click.Context, parameter: click.Parameter, file: object = None) -> str | None:
    """Return the origin of a parameter's value, as shown to people; None for the default. `file` holds the
    options."""
    source = context.get_parameter_source(parameter.name or "")
    match source:
        case ParameterSource.COMMANDLINE | ParameterSource.PROMPT:
            return "the command line"
        case ParameterSource.ENVIRONMENT:
            return variable_of(context, parameter)
        case ParameterSource.DEFAULT_MAP:
            return str(file)
    return None


def variable_of(context: click.Context, parameter: click.Parameter) -> str:
    """Return the environment variable that sets an option."""
    return f"{context.auto_envvar_prefix}_{(parameter.name or '').upper()}"


def with_origin(error: click.ClickException) -> click.ClickException:
    """A complaint about a value, with the environment variable that it came from if it did."""
    if isinstance(error, click.BadParameter) and error.ctx is not None and error.param is not None:
        source = error.ctx.get_parameter_source(error.param.name or "")
        if source is ParameterSource.ENVIRONMENT:
            variable = variable_of(error.ctx, error.param)
            said = f"{error.message.rstrip('.')} (from the environment variable {variable})."
            return click.BadParameter(said, error.ctx, error.param)
    return error


OptionsT = TypeVar("OptionsT", bound=Options)
Verb = Callable[..., Any]

SIZE = "BYTES"
"""The metavar of an option that takes a size with a unit."""

LIMITS = {"ge": "at least", "le": "at most"}


class Number(click.ParamType[float]):
    """A number in a range; NaN is in none."""

    def __init__(self, kind: type[int] | type[float], allowed: Range | None) -> None:
        """`kind` is int or float."""
        self.kind = kind
        self.allowed = allowed or Range()
        self.name = "integer" if kind is int else "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error that says the range where it is none or out of it."""
        try:
            number = self.kind(value)
        except (ValueError, OverflowError):
            noun = "an integer" if self.kind is int else "a number"
            self.fail(f"{quoted(str(value))} is not {noun} {self.allowed}.", param, ctx)
        if number not in self.allowed:
            self.fail(f"{quoted(str(value))} is not {self.allowed}.", param, ctx)
        return number


class Parsed(click.ParamType[Any]):
    """A value that its field itself reads from text."""

    def __init__(self, kind: Any, metavar: str) -> None:
        """`kind` is the field's type with all that validates it."""
        self.adapter = TypeAdapter[Any](kind)
        self.name = metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; a usage error that says what is wrong with it."""
        try:
            return self.adapter.validate_python(value)
        except RequestError as error:
            self.fail(f"{error}.", param, ctx)
        except ValidationError as error:
            self.fail(f"{quoted(str(value))}{self._reason(error.errors()[0])}.", param, ctx)

    def _reason(self, first: ErrorDetails) -> str:
        """Return the text of the allowed range: with the unit for sizes, else as pydantic states it."""
        for key, words in LIMITS.items():
            if key in first.get("ctx", {}):
                limit = first["ctx"][key]
                return f" is not {words} {bytes_text(limit) if self.name == SIZE else limit}"
        return f": {first['msg']}"


class Choice(click.Choice[str]):
    """One of a flag's choices; for a former one, the sentence that says what to use instead."""

    def __init__(self, flag: Flag) -> None:
        super().__init__(flag.choices)
        self._former = dict(flag.former)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value, or end with a sentence."""
        if value in self._former:
            self.fail(f"{self._former[value]}.", param, ctx)
        return super().convert(value, param, ctx)


def flags_of(
    model: type[Options], *, without: Iterable[str] = (), usual: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Verb], Verb]:
    """Return a decorator that adds a flag for every field of `model` to a verb, which receives them as
    keyword arguments.

    Fields in `without`, and fields that exclude themselves, get none. `usual` describes in words what holds
    if a field's flag is not given, where that is not the field's default.
    """
    left_out = set(without)

    def add(verb: Verb) -> Verb:
        for name, field in reversed(model.model_fields.items()):
            if flag_of(field).shown and name not in left_out:
                verb = click.option(*_names(name, field), name, **_settings(field, usual.get(name)))(verb)
        return verb

    return add


def read_flags(model: type[OptionsT], chosen: Mapping[str, Any], **others: Any) -> OptionsT:
    """The verb's keyword arguments, and what had no flag, as options; only what was typed counts as given.

    Raises:
        RequestError: they do not go together.
    """
    context = click.get_current_context(silent=True)
    given = {
        name: chosen[name]
        for name in model.model_fields
        if name in chosen
        if context is None or context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    return model(**given | others)


def _names(name: str, field: FieldInfo) -> tuple[str, ...]:
    return flag_of(field).names or (f"--{name.replace('_', '-')}",)


def _settings(field: FieldInfo, usual: str | None) -> dict[str, Any]:
    """Return the arguments of click.option for a field; see `flags_of` for `usual`."""
    kind, flag = type_of(field), flag_of(field)
    default = field.default.value if isinstance(field.default, Enum) else field.default
    settings: dict[str, Any] = {"default": default, "help": _help(field, usual)}
    if kind is bool:
        return settings | {"is_flag": True}
    if flag.metavar:
        settings["metavar"] = flag.metavar
    if flag.multiple:
        return settings | {"multiple": True, "type": _click_type(get_args(kind)[0], field)}
    return settings | {"type": _click_type(kind, field)}


def _click_type(kind: Any, field: FieldInfo) -> Any:
    flag = flag_of(field)
    if flag.choices:
        return Choice(flag)
    if kind is str:
        return str
    if isinstance(kind, type) and issubclass(kind, Path):
        return click.Path(path_type=Path)
    if isinstance(kind, type) and not flag.metavar:
        if issubclass(kind, Enum):
            return click.Choice([member.value for member in kind])
        if issubclass(kind, int | float):
            return Number(kind, range_of(field))
    annotated: Any = Annotated
    whole = annotated[field.annotation, *field.metadata]
    return Parsed(kind if flag.multiple else whole, flag.metavar or "TEXT")


def _help(field: FieldInfo, usual: str | None) -> str:
    text, flag, kind = field.description or "", flag_of(field), type_of(field)
    notes = []
    if usual is not None:
        notes.append(f"default: {usual}")
    elif field.default is not None and kind is not bool and field.default != ():
        notes.append(f"default: {_shown(field.default)}")
    elif flag.default is not None:
        notes.append(f"default: {flag.default}")
    allowed = range_of(field)
    if kind is float and allowed is not None:
        notes.append(str(allowed))
    return f"{text}  [{'; '.join(notes)}]" if notes else text


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
