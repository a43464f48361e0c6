"""`anespec serve`: a resident daemon."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from anespec.console import out
from anespec.model_path import ModelPath
from anespec.option_flags import flags_of, read_flags
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import ConfigFile, read_config
from anespec.serving.options import PoolOptions

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
@click.option("--show-config", is_flag=True, help="Print what holds and where it came from; serve nothing.")
def serve(model: Path | None, config: ConfigFile | None, show_config: bool, **chosen: Any) -> None:
    """Keep MODEL resident and answer OpenAI's API.

    MODEL is an artifact, a GGUF, which is converted and checked once, or the name of a model in the cache.
    Others are loaded when they are asked for. SIGTERM lets answers that have begun end; SIGHUP reads --config
    and the keys again, and opens artifacts that have changed anew.

    \b
    Example:
      anespec serve model.gguf --port 8080
      anespec serve model.anespec --model small=small.anespec --memory 12GB
      ANESPEC_SERVE_PORT=8081 anespec serve --config serve.toml
    """
    asked = _request(model, config, chosen)
    if show_config:
        from anespec.serving.shown_config import shown_config

        out().print(shown_config(click.get_current_context(), asked), end="")
        return
    asked.names(config)  # what is wrong with them is said before anything heavy is loaded
    from anespec.serving.start import serve as run

    asyncio.run(run(asked))


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
