"""Derive command-line flags from declared options (see anespec.system.options)."""

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
    """Return the origin of a parameter's value, for messages; None for the default.

    `file` is the configuration file that holds the options, if there is one.
    """
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
    """Return an error about a value; if the value came from an environment variable, name the variable."""
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
    """A flag's type: a number in a range. NaN is in no range."""

    def __init__(self, kind: type[int] | type[float], allowed: Range | None) -> None:
        """`kind` is int or float."""
        self.kind = kind
        self.allowed = allowed or Range()
        self.name = "integer" if kind is int else "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail with the allowed range if it is not a number, or out of range."""
        try:
            number = self.kind(value)
        except (ValueError, OverflowError):
            noun = "an integer" if self.kind is int else "a number"
            self.fail(f"{quoted(str(value))} is not {noun} {self.allowed}.", param, ctx)
        if number not in self.allowed:
            self.fail(f"{quoted(str(value))} is not {self.allowed}.", param, ctx)
        return number


class Named(click.Path):
    """A flag's type: a path. An empty text, which would be the current folder, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail."""
        if value == "":
            self.fail("a name is missing.", param, ctx)
        return super().convert(value, param, ctx)


class Parsed(click.ParamType[Any]):
    """A flag's type whose text is validated by the option's own field."""

    def __init__(self, kind: Any, metavar: str) -> None:
        """`kind` is the field's type with its validators."""
        self.adapter = TypeAdapter[Any](kind)
        self.name = metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; fail with the validation error."""
        try:
            return self.adapter.validate_python(value)
        except RequestError as error:
            self.fail(f"{error}.", param, ctx)
        except ValidationError as error:
            self.fail(f"{quoted(str(value))}{self._reason(error.errors()[0])}.", param, ctx)

    def _reason(self, first: ErrorDetails) -> str:
        """Return the reason of a validation error: limits of sizes with units, all others as pydantic words
        them."""
        for key, words in LIMITS.items():
            if key in first.get("ctx", {}):
                limit = first["ctx"][key]
                return f" is not {words} {bytes_text(limit) if self.name == SIZE else limit}"
        return f": {first['msg']}"


class Choice(click.Choice[str]):
    """A flag's type: one of its choices. A former choice fails with the sentence that names its
    replacement."""

    def __init__(self, flag: Flag) -> None:
        super().__init__(flag.choices)
        self._former = dict(flag.former)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the choice, or fail."""
        if value in self._former:
            self.fail(f"{self._former[value]}.", param, ctx)
        return super().convert(value, param, ctx)


class GroupedCommand(click.Command):
    """A verb whose help has its options in groups; those in none come last."""

    groups: Mapping[str, Callable[[str], bool]] = MappingProxyType({})
    """The groups' titles in their order, and whether an option with a name belongs to one; the first counts.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in self.groups}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                name = parameter.name or ""
                title = next((title for title, holds in self.groups.items() if holds(name)), "Other options")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def flags_of(
    model: type[Options], *, without: Iterable[str] = (), usual: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Verb], Verb]:
    """Return a decorator that adds a flag for each field of `model` to a verb.

    The verb receives the values as keyword arguments. Fields in `without`, and fields that are not `shown`,
    get no flag. `usual` describes the effect of leaving out a flag, for fields where it is not the default.
    """
    left_out = set(without)

    def add(verb: Verb) -> Verb:
        for name, field in reversed(model.model_fields.items()):
            if flag_of(field).shown and name not in left_out:
                verb = click.option(*_names(name, field), name, **_settings(field, usual.get(name)))(verb)
        return verb

    return add


def read_flags(model: type[OptionsT], chosen: Mapping[str, Any], **others: Any) -> OptionsT:
    """Return the verb's keyword arguments, and `others` without flags, as options.

    Only values that the user gave count as set.

    Raises:
        RequestError: the values contradict each other.
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
        return Named(path_type=Path)
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
