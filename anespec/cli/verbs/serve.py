"""Implement `anespec serve`: run a daemon that serves models over HTTP."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from anespec.cli.console import out
from anespec.cli.option_flags import flags_of, origin_of, read_flags
from anespec.manifests.weight_choice import WeightChoice
from anespec.models.model_path import ModelPath
from anespec.models.remote import is_remote
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import ConfigFile, PoolOptions, file_options, is_name, read_config
from anespec.serving.request import ANY_BUILD, ServeRequest
from anespec.serving.sources import ModelSource
from anespec.system.errors import UsageError
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.options import flag_of

# The output of `anespec serve --show-config`: the effective options as a configuration file, each with its
# origin.


def shown_config(context: click.Context, asked: ServeRequest) -> str:
    """Return TOML that `--config` reads; options without a value are comments.

    Raises:
        UsageError: no model is given, or a path cannot be written.
    """
    file = asked.config.path if asked.config is not None else None
    parameters = {parameter.name: parameter for parameter in context.command.params}
    groups = {ServeOptions: asked.serving, PoolOptions: asked.pool, LoadOptions: asked.loading}
    lines = []
    for name, group in file_options().items():
        value = getattr(groups[group], name)
        origin = origin_of(context, parameters[name], file) or "default"
        if value is None:
            usual = flag_of(group.model_fields[name]).default
            lines.append(f"# {name} is not given" + (f"; default: {usual}" if usual else ""))
        else:
            lines.append(f"{name} = {_toml(_own_place(name, value))}  # {printable(origin, LONGEST_REASON)}")
    lines.append("\n[models]")
    for name, source in asked.names(asked.config).items():
        lines.append(f"{_toml(name)} = {_table(source, asked)}")
    text = "\n".join(lines) + "\n"
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError("a path is not valid UTF-8, which no configuration file can hold; rename it")
    return text


def _table(source: ModelSource, asked: ServeRequest) -> str:
    """Return a model as an inline table, with the options that differ from the common ones, and those for
    converting."""
    # Of an artifact among several models, the common options for converting do not hold.
    common = asked.loading.with_changes(**ANY_BUILD)
    own = {
        name: getattr(source.loading, name)
        for name in LoadOptions.model_fields
        if getattr(source.loading, name) not in (None, getattr(common, name))
    }
    if source.preset.file is not None:
        own["preset"] = source.preset.file
    if not own:
        return _toml(_own_place("path", source.path))
    parts = {"path": source.path} | own
    return (
        "{ " + ", ".join(f"{name} = {_toml(_own_place(name, value))}" for name, value in parts.items()) + " }"
    )


def _own_place(name: str, value: object) -> object:
    """Return an option's value for a file that may be moved to another folder: its paths are absolute.

    A model that does not exist as a path may be a name in the cache, or a remote name.
    """
    if not isinstance(value, Path) or is_name(name, value):
        return value
    may_be_name = name in ("draft", "path")
    return value if may_be_name and not value.exists() else value.absolute()


def _toml(value: object) -> str:
    """Return a value as TOML; JSON's strings, numbers and lists are valid TOML, except for DEL."""
    match value:
        case Path() | WeightChoice():
            return _toml(str(value))
        case tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# Rebuild the command line from the given options, with absolute paths, for a unit file.

GIVEN_SOURCES = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def typed_arguments(context: click.Context, without: frozenset[str]) -> list[str]:
    """Return the given flags, environment variables and arguments as a command line, except those in
    `without`."""
    words: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if (
            name in without
            or context.get_parameter_source(name) not in GIVEN_SOURCES
            or name not in context.params
        ):
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
    # After -- nothing is read as a flag.
    return [*words, "--", *arguments] if arguments else words


def _word(value: Any) -> str:
    match value:
        case ConfigFile():
            return str(value.path.absolute())
        case Path():
            # A text that is not a path is a name in the cache, or a remote name.
            is_name = is_remote(value) or (len(value.parts) == 1 and not value.exists())
            return str(value if is_name else value.absolute())
    return str(value)


def _named_model(text: str) -> str:
    name, _, path = text.partition("=")
    return f"{name}={_word(Path(path))}"


INSTALL_OPTIONS = frozenset({"install", "uninstall", "print_it", "force", "show_config"})

if TYPE_CHECKING:
    from anespec.serving.request import ServeRequest


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> ConfigFile | None:
    """Read the config file, and use its options as defaults for flags and environment variables."""
    if path is None:
        return None
    found = read_config(path)
    context.default_map = dict(found.options)
    return found


@click.command(short_help="Serve models over HTTP.")
@click.argument("model", metavar="[MODEL]", type=ModelPath(), required=False)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    callback=_read_config,
    help="Take options that are not given here from a TOML file, and models from its table [models].",
)
@flags_of(PoolOptions)
@flags_of(ServeOptions)
@flags_of(LoadOptions)
@click.option(
    "--show-config", is_flag=True, help="Print the effective options with their origins; serve nothing."
)
@click.option(
    "--install",
    is_flag=True,
    help="Start the daemon when you log in, with the options given here: write a launchd agent, or on Linux "
    "a systemd user unit.",
)
@click.option("--uninstall", is_flag=True, help="Remove what --install has written.")
@click.option("--print", "print_it", is_flag=True, help="Only print what --install would write.")
@click.option(
    "--force", is_flag=True, help="Let --install replace, or --uninstall remove, a file that differs."
)
def serve(
    model: Path | None,
    config: ConfigFile | None,
    show_config: bool,
    install: bool,
    uninstall: bool,
    print_it: bool,
    force: bool,
    **chosen: Any,
) -> None:
    """Keep MODEL in memory and serve OpenAI's API.

    MODEL is an artifact, a GGUF, which is converted and checked once, hf:OWNER/REPO/FILE.gguf of the Hugging
    Face hub, or the name of a model in the cache. Other models are loaded at their first request. On SIGTERM
    running answers are completed; on SIGHUP --config and the keys are read again, and changed artifacts are
    reloaded.

    \b
    Example:
      anespec serve model.gguf --port 8080
      anespec serve model.anespec --model small=small.anespec --memory 12GB
      ANESPEC_SERVE_PORT=8081 anespec serve --config serve.toml
      anespec serve model.gguf --install
    """
    if uninstall:
        _uninstall(force)
        return
    asked = _request(model, config, chosen)
    if install:
        asked.require_there(config)
        _install(asked.serving.drain_seconds, print_it, force)
        return
    if show_config:
        out().print(shown_config(click.get_current_context(), asked), end="")
        return
    asked.names(config)  # report wrong names before slow imports
    from anespec.serving.start import serve as run

    asyncio.run(run(asked))


def _install(drain_seconds: float, print_it: bool, force: bool) -> None:
    from anespec.serving.units import Job, install, unit_for

    arguments = typed_arguments(click.get_current_context(), INSTALL_OPTIONS)
    unit = unit_for(sys.platform, Job.of(arguments, drain_seconds))
    if print_it:
        out().print(unit.text, end="")
        return
    done = "is written" if install(unit, force) else "is up to date"
    out().print(f"{unit.path} {done}. Next:")
    for command in unit.start:
        out().print(f"  {command}")


def _uninstall(force: bool) -> None:
    from anespec.serving.units import Job, uninstall, unit_for

    unit = unit_for(sys.platform, Job((), {}, 0))
    if not uninstall(unit.path, force):
        raise UsageError(f"{unit.path}: does not exist, so there is nothing to remove")
    out().print(f"{unit.path} was removed. To stop the running daemon:")
    for command in unit.end:
        out().print(f"  {command}")


def _request(model: Path | None, config: ConfigFile | None, chosen: dict[str, Any]) -> "ServeRequest":
    from anespec.serving.request import ServeRequest, firm_options

    context = click.get_current_context()
    serving = read_flags(ServeOptions, chosen)
    sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    return ServeRequest(
        model,
        serving,
        read_flags(PoolOptions, chosen),
        read_flags(LoadOptions, chosen).with_changes(queue=serving.queue),
        config,
        firm_options([name for name in chosen if context.get_parameter_source(name) in sources]),
    )
