"""`anespec serve`: a resident daemon."""

import asyncio
from pathlib import Path
from typing import Any

import click

from anespec.console import watcher
from anespec.model_path import ModelPath
from anespec.option_flags import flags_of, read_flags
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions


@click.command(short_help="Serve a model over HTTP.")
@click.argument("model", type=ModelPath())
@flags_of(ServeOptions)
@flags_of(LoadOptions)
def serve(model: Path, **chosen: Any) -> None:
    """Keep MODEL resident and answer OpenAI's API.

    \b
    Example:
      anespec serve model.anespec --port 8080
    """
    serving = read_flags(ServeOptions, chosen)
    loading = read_flags(LoadOptions, chosen).with_changes(queue=serving.queue)
    asyncio.run(_serve(model, serving, loading))


async def _serve(path: Path, options: ServeOptions, loading: LoadOptions) -> None:
    from anespec import __version__
    from anespec.model import Model, load_model
    from anespec.model_cache import resolve_artifact
    from anespec.runtime.server.app import build_app
    from anespec.runtime.server.daemon import Daemon
    from anespec.runtime.server.endpoints import ENDPOINTS
    from anespec.runtime.server.keys import KeyRing
    from anespec.runtime.server.lifecycle import Lifecycle
    from anespec.runtime.server.listening import address_text, listen_on, serve_until_ended
    from anespec.runtime.server.metrics import Metrics
    from anespec.serving.pool import ModelPool

    watch = watcher(shown=True)

    def load(path: Path) -> Model:
        artifact = resolve_artifact(
            path, backend=loading.backend, threads=loading.threads, display=watch.shares
        )
        return load_model(artifact, loading, watch)

    models = ModelPool({path.resolve().name.removesuffix(".anespec").removesuffix(".gguf"): path}, load)
    keys = KeyRing.of_file(options.api_key_file) if options.api_key_file is not None else KeyRing()
    daemon = Daemon(__version__, options, models, keys, Metrics(models), Lifecycle())
    listening = listen_on(options)

    async def begin() -> None:
        async with models.lease(None):
            watch.note(f"listening on {address_text(listening)}")

    await serve_until_ended(daemon, build_app(daemon, ENDPOINTS), listening, begin)
