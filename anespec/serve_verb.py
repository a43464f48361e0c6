"""`anespec serve`: a resident daemon."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from anespec.console import out
from anespec.manifests.errors import UsageError
from anespec.model_path import ModelPath
from anespec.option_flags import flags_of, read_flags
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import ConfigFile, read_config
from anespec.serving.options import PoolOptions

ABOUT_INSTALLING = frozenset({"install", "uninstall", "print_it", "force", "show_config"})

if TYPE_CHECKING:
    from anespec.serving.request import ServeRequest


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> ConfigFile | None:
    """Let the file say what flags and the environment do not."""
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
    help="Have it started when you log in, with the options given here: write a launchd agent, or on Linux "
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
        from anespec.serving.shown_config import shown_config

        out().print(shown_config(click.get_current_context(), asked), end="")
        return
    asked.names(config)  # what is wrong with them is said before anything heavy is loaded
    from anespec.serving.start import serve as run

    asyncio.run(run(asked))


def _install(drain_seconds: float, print_it: bool, force: bool) -> None:
    from anespec.serving.arguments import typed_arguments
    from anespec.serving.install import install
    from anespec.serving.units import Job, unit_for

    arguments = typed_arguments(click.get_current_context(), ABOUT_INSTALLING)
    unit = unit_for(sys.platform, Job.of(arguments, drain_seconds))
    if print_it:
        out().print(unit.text, end="")
        return
    done = "is written" if install(unit, force) else "is up to date"
    out().print(f"{unit.path} {done}. Next:")
    for command in unit.start:
        out().print(f"  {command}")


def _uninstall(force: bool) -> None:
    from anespec.serving.install import uninstall
    from anespec.serving.units import Job, unit_for

    unit = unit_for(sys.platform, Job((), {}, 0))
    if not uninstall(unit.path, force):
        raise UsageError(f"{unit.path}: is not there, so there is nothing to remove")
    out().print(f"{unit.path} is removed. To end what runs:")
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
