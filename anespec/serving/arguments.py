"""A command line given back as it would be typed in any folder: what was chosen, with absolute paths."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from anespec.remote import is_remote
from anespec.serving.config_file import ConfigFile

CHOSEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def typed_arguments(context: click.Context, without: frozenset[str]) -> list[str]:
    """The flags, variables and arguments that a verb was given, but for those in `without`."""
    words: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in without or context.get_parameter_source(name) not in CHOSEN or name not in context.params:
            continue
        value = context.params[name]
        if isinstance(parameter, click.Argument):
            arguments.append(_word(value))
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words += parameter.opts[:1] if value else []
        else:
            values = value if parameter.multiple else (value,)
            say = _named_model if name == "models" else _word
            words += [f"{parameter.opts[0]}={say(each)}" for each in values]
    # Nothing after it is a flag.
    return [*words, "--", *arguments] if arguments else words


def _word(value: Any) -> str:
    match value:
        case ConfigFile():
            return str(value.path.absolute())
        case Path():
            # What is no path is the name of a model in the cache, or one of another machine.
            is_name = is_remote(value) or (len(value.parts) == 1 and not value.exists())
            return str(value if is_name else value.absolute())
    return str(value)


def _named_model(text: str) -> str:
    name, _, path = text.partition("=")
    return f"{name}={_word(Path(path))}"
