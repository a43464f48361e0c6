"""Read the TOML file of `anespec serve --config`: the verb's options, and a table of models.

    port = 8081
    memory = "12GB"

    [models]
    small = "small.anespec"

    [models.large]
    path = "large.gguf"
    threads = 8

    [models.writer]
    preset = "writer"

Relative paths start at the file's folder.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

from pydantic import BeforeValidator, Field
from pydantic.fields import FieldInfo

from anespec.models.model_path import expanded, placed
from anespec.models.presets import find_preset, read_preset
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.runtime.text.templates.built_in import BUILT_IN_TEMPLATES
from anespec.system.errors import RequestError, UsageError
from anespec.system.formatting import listed, printable, quoted, shown
from anespec.system.options import Flag, Options, flag_of, read_size, type_of
from anespec.system.toml_file import read_toml


class PoolOptions(Options):
    """Options for the models that a daemon serves, and for the memory they may take."""

    models: Annotated[tuple[str, ...], Flag(names=("--model",), metavar="NAME=MODEL", multiple=True)] = Field(
        default=(),
        description="Serve another model under this name, loaded at its first request; may be given several "
        "times.",
    )
    memory: Annotated[
        int | None, BeforeValidator(read_size), Flag(metavar="BYTES", default="0.8 of the machine's")
    ] = Field(
        default=None,
        ge=1,
        description="The memory of all loaded models together; the least recently used are unloaded.",
    )
    preload: bool = Field(default=False, description="Load all models at the start, not only the first one.")


class ModelEntry(LoadOptions):
    """A model in the config file: its path, its own load options, and the preset of its answers."""

    path: Path
    preset: str | None = None


FILES = tuple(name for name, field in LoadOptions.model_fields.items() if type_of(field) is Path)
"""The options of a model that name a file or a folder."""

MODELS = "models"
GROUPS: tuple[type[Options], ...] = (ServeOptions, PoolOptions, LoadOptions)

BYTES = "BYTES"
"""The metavar of an option that takes a size."""

OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True)
class ConfigFile:
    """The content of a config file: its options by name, unchanged, and its models in the file's order."""

    path: Path
    options: Mapping[str, Any]
    models: Mapping[str, ModelEntry]


def file_options() -> dict[str, type[Options]]:
    """Return the options that a file may contain, each with the class that declares it."""
    return {
        name: group
        for group in GROUPS
        for name, field in group.model_fields.items()
        if flag_of(field).shown and name != MODELS
    }


def read_config(path: Path) -> ConfigFile:
    """Read and check a config file.

    Raises:
        StorageError: the file cannot be read, or is too large for a config file.
        UsageError: the file is not TOML, or has an unknown key or an invalid value.
    """
    found = read_toml(path)
    folder = path.absolute().parent
    models = found.pop(MODELS, {})
    if not isinstance(models, dict):
        raise UsageError(f"{path}: {MODELS} must be a table; write [{MODELS}] and lines NAME = PATH")
    return ConfigFile(
        path,
        _options(path, folder, found),
        {name: _entry(path, folder, name, value) for name, value in models.items()},
    )


def _options(path: Path, folder: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    known = file_options()
    options: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in known:
            raise UsageError(f"{path}: there is no option {quoted(key)}; {_hint(name, known)}")
        group = known[name]
        checked = _checked(group, {name: value}, str(path))
        is_file = type_of(group.model_fields[name]) is Path
        options[name] = _placed(name, getattr(checked, name), folder, str(path)) if is_file else value
    return options


def _hint(name: str, known: Mapping[str, object]) -> str:
    if name == "model":
        return f"write models in a table: [{MODELS}], and lines NAME = PATH"
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"the options are {listed([*known, MODELS])}"


def _entry(path: Path, folder: Path, name: str, value: object) -> ModelEntry:
    if not name:
        raise UsageError(f"{path}: a model in [{MODELS}] has an empty name; give it one")
    where = f"{path}: {MODELS}.{printable(name)}"
    if not isinstance(value, str | dict):
        raise UsageError(f"{where} is neither a path nor a table with one; write {name} = PATH")
    facts = {"path": value} if isinstance(value, str) else _with_preset(value, folder, where)
    if "path" not in facts:
        raise UsageError(
            f"{where} has no path; write path = PATH in it, or preset = NAME of one with a model"
        )
    entry = _checked(ModelEntry, facts, where)
    # An option that is not given stays so: the common one holds.
    given = {name: getattr(entry, name) for name in FILES if name in entry.model_fields_set}
    return entry.with_changes(
        path=placed(entry.path, folder, where),
        **{name: file and _placed(name, file, folder, where) for name, file in given.items()},
    )


def _with_preset(facts: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """Return a model's table with its preset's values added, and with the preset's absolute path."""
    name = facts.get("preset")
    if not isinstance(name, str):
        return dict(facts)
    try:
        path = find_preset(name, folder)
        preset = read_preset(path)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    said: dict[str, Any] = {} if preset.model is None else {"path": str(preset.model)}
    if preset.context is not None:
        said["context"] = preset.context
    return {**said, **facts, "preset": str(path)}


def _placed(name: str, path: Path, folder: Path, where: str) -> Path:
    """Return an option's path, resolved from the file's folder.

    Names of chat templates, and of models that are no paths, stay unchanged.
    """
    if name == "draft":
        return placed(path, folder, where)
    return path if is_name(name, path) else folder / expanded(path, where)


def is_name(option: str, path: Path) -> bool:
    """Return whether the value of an option that takes a path is a name with a meaning of its own."""
    return option == "chat_template" and str(path) in BUILT_IN_TEMPLATES


def _checked(group: type[OptionsT], values: Mapping[str, object], where: str) -> OptionsT:
    """Validate the values as options. Strictly, since TOML has types."""
    fields = group.model_fields
    try:
        found = {
            name: _value(name, fields[name], value) if name in fields else value
            for name, value in values.items()
        }
        return group.model_validate(found, strict=True)
    except RequestError as error:
        raise UsageError(f"{where}: {error}") from None


def _value(name: str, field: FieldInfo, value: object) -> object:
    """Convert a value to a type that TOML does not have: a path or a tuple."""
    kind, flag = type_of(field), flag_of(field)
    if flag.choices and value not in flag.choices and value not in dict(flag.former):
        raise RequestError(f"{name} is {shown(value)}; it must be {listed(flag.choices, 'or')}")
    if flag.metavar == BYTES:
        try:
            return read_size(value)
        except RequestError as error:
            raise RequestError(f"{name}: {error}") from None
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in tuple(kind):
            raise RequestError(f"{name} is {shown(value)}; it must be {listed(tuple(kind), 'or')}")
        return kind(str(value))
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(value)
    wanted = "true or false" if kind is bool else "a path" if kind is Path else _wanted_list(kind)
    if wanted and not isinstance(value, bool):
        raise RequestError(f"{name} is {shown(value)}; it must be {wanted}")
    return value


def _wanted_list(kind: object) -> str:
    return 'a list, as in ["one", "two"]' if get_origin(kind) is tuple else ""
