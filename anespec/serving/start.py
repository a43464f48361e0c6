"""Run a daemon: listen, load and warm up the models, serve until it is stopped, and clean up."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anespec import __version__
from anespec.cli.console import is_quiet, out, watcher
from anespec.models.memory_limit import MemoryLimit
from anespec.runtime.engine.requests import Principal
from anespec.runtime.options import GenerationOptions
from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.runtime.server.app import build_app
from anespec.runtime.server.daemon import Daemon, Lifecycle, Phase
from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.http.listening import AddressTakenError, address_text, listen_on
from anespec.runtime.server.http.running import serve_until_ended
from anespec.runtime.server.logs import logged
from anespec.runtime.server.metrics import Metrics
from anespec.runtime.server.models import ServingModel
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import read_config
from anespec.serving.loader import ArtifactLoader
from anespec.serving.pool import ModelLoadError, ModelPool
from anespec.serving.records import KeptRecord, daemon_at, recorded
from anespec.serving.request import ServeRequest, missing
from anespec.serving.sources import Names
from anespec.system.errors import AnespecError, NotFoundError, StorageError, UsageError
from anespec.system.formatting import listed, printable
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.system.progress import Progress, StepReport


def telling(watch: ProgressCallbacks, lifecycle: Lifecycle) -> ProgressCallbacks:
    """Return callbacks that call `watch`, and update `lifecycle.loading`.

    Clients can read `lifecycle.loading` without a key, so it has the kind of work (`converting`) and its
    share, but no model's name.
    """

    @contextlib.contextmanager
    def steps(title: str) -> "Iterator[StepReport]":
        with watch.steps(title) as report:
            lifecycle.loading = _kind(title)
            yield report

    @contextlib.contextmanager
    def shares(title: str) -> "Iterator[Progress]":
        with watch.shares(title) as report:
            lifecycle.loading = _kind(title)

            def tell(note: str, share: float | None = None, /) -> None:
                lifecycle.loading = _kind(title) if share is None else f"{_kind(title)}, {share:.0%}"
                report(note, share)

            yield tell

    return ProgressCallbacks(watch.note, steps, shares)


def _kind(title: str) -> str:
    return title.partition(" ")[0]


# Report the state of a daemon to systemd (sd_notify), if systemd started it.

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def tell_system(state: str) -> None:
    """Report the state; errors are ignored, since the daemon does not depend on systemd."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    # A name that begins with @ is an abstract socket, which is not in the file system.
    place = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.connect(place)
        found.sendall(state.encode())


SWITCH_SECONDS = 0.0005
"""Seconds after which a thread must release Python's interpreter to a waiting thread. With Python's default
of 5 ms, a thread that encodes a long text delays every step of a pass by that much."""

SECONDS_BETWEEN_NOTES = 1.0

ONE_PASS = GenerationOptions(max_tokens=1, speculate=False, ignore_eos=True)

ONE_OF_JSON = ONE_PASS.with_changes(grammar=Grammar(kind=GrammarKind.JSON))
"""A request that prepares the vocabulary for grammars. A large vocabulary takes a second in which nothing
else runs."""

WARM_UP_CLIENT = Principal(tenant="the first pass")
"""The tenant of warm-up requests: no client may reuse their K/V."""

_log = logging.getLogger("anespec.serve")


async def serve(asked: ServeRequest) -> None:
    """Serve until the daemon is stopped.

    Raises:
        AnespecError: the daemon cannot listen, or cannot load the models of the start.
    """
    options, lifecycle = asked.serving, Lifecycle()
    watch = telling(_terminal_progress(), lifecycle)
    # After the start, progress would disturb the log.
    loader = ArtifactLoader(lambda: watch if lifecycle.phase is Phase.STARTING else _LOGGED)
    keys = _keys(options)
    said: list[Callable[[Sequence[str]], None]] = []

    def reread() -> Names:
        config = None if asked.config is None else read_config(asked.config.path)
        found = asked.names(config)
        if config is not None and asked.config is not None and config.options != asked.config.options:
            _log.warning(
                "%s: its models were read again; its other changed options take effect at the next start",
                config.path,
            )
        keys.take(_keys(options))
        _note_missing_admin(keys, options, _LOGGED)
        for tell in said:
            tell(tuple(found))
        return found

    sources = asked.names(asked.config)
    default = next(iter(sources))
    for sentence in missing({default: sources[default]}):
        raise NotFoundError(sentence)
    models = ModelPool(sources, loader, MemoryLimit.of(asked.pool.memory), reread=reread)
    daemon = Daemon(__version__, options, models, keys, Metrics(models, keys), lifecycle)
    with (
        logged(options.log_json),
        _listening(options) as listening,
        recorded(address_text(listening[0]), options, models.names) as record,
    ):
        said.append(record.serves)

        async def begin() -> None:
            watch.note(f"listening on {address_text(listening[0])}")
            for sentence in missing({name: sources[name] for name in models.names[1:]}):
                watch.note(sentence)
            # The default is loaded last, so that it is in memory even if not all models fit.
            for name in reversed(models.names if asked.pool.preload else models.names[:1]):
                await _warm_up(models, name, watch)
            _note_missing_admin(keys, options, watch)
            _note_unloaded(models, asked.pool.preload, watch)
            lifecycle.ready()
            tell_system(READY)
            out().print(_ready(listening, models.names))

        sys.setswitchinterval(SWITCH_SECONDS)
        noting = asyncio.create_task(_note_checks(models, record))
        try:
            await serve_until_ended(daemon, build_app(daemon, ENDPOINTS), listening, begin)
        finally:
            noting.cancel()
            tell_system(STOPPING)


async def _note_checks(models: ModelPool, record: KeptRecord) -> None:
    """Update what the background gates have done, and what is in memory, for `anespec ps` and `rm`."""
    while True:
        await asyncio.sleep(SECONDS_BETWEEN_NOTES)
        checking = {card.id: card.checking for card in models.cards if card.checking is not None}
        record.note(checking, models.folders)


def _keys(options: ServeOptions) -> KeyRing:
    return KeyRing() if options.api_key_file is None else KeyRing.of_file(options.api_key_file)


def _note_missing_admin(keys: KeyRing, options: ServeOptions, watch: ProgressCallbacks) -> None:
    if not keys.has_admin:
        watch.note(
            f"{options.api_key_file}: none of its keys is an administrator's, so /metrics and /stats show "
            "each key its own requests only; write NAME:KEY admin for a key that sees all"
        )


async def _warm_up(models: ModelPool, name: str, watch: ProgressCallbacks) -> None:
    """Load a model and run one pass, since the first pass is slow."""
    try:
        async with models.lease(name) as leased:
            with watch.steps(f"warming up {name}") as report:
                report("the first pass")
                await asyncio.to_thread(_run_one_pass, leased.model, ONE_PASS)
                report("grammars")
                # Some vocabularies cannot write JSON.
                with contextlib.suppress(AnespecError):
                    await asyncio.to_thread(_run_one_pass, leased.model, ONE_OF_JSON)
    except ModelLoadError as error:
        if isinstance(error.__cause__, AnespecError):
            raise error.__cause__ from None
        raise
    except ApiError as error:
        raise UsageError(error.message) from None


def _note_unloaded(models: ModelPool, all_are_wanted: bool, watch: ProgressCallbacks) -> None:
    missing = [printable(name) for name in models.names if name not in models.loaded]
    if all_are_wanted and missing:
        watch.note(
            f"{listed(missing)}: no room beside the other models (--memory), so loaded at the first request"
        )


def _run_one_pass(model: ServingModel, options: GenerationOptions) -> None:
    (run,) = model.run((model.tokenizer.bos_id or 0,), options, WARM_UP_CLIENT)
    for _ in run:
        pass


def _ready(listening: Sequence[socket.socket], names: Sequence[str]) -> str:
    served, address = listed([printable(name) for name in names]), address_text(listening[0])
    if listening[0].family == socket.AF_UNIX:
        path = listening[0].getsockname()
        return f"Serving {served} at {address} (curl --unix-socket {path} http://localhost/v1/models)."
    return (
        f"Serving {served} at {address}/v1 for clients of OpenAI's API, and at {address} for those of "
        f"Anthropic's, Ollama's and llama-server's; {address}/ is a page to chat."
    )


@contextlib.contextmanager
def _listening(options: ServeOptions) -> Iterator[tuple[socket.socket, ...]]:
    """Listen while the block lasts; afterwards remove the file of a Unix socket."""
    try:
        found = listen_on(options)
    except AddressTakenError as error:
        raise _taken(error) from error
    path = options.unix
    bound = None if path is None else _inode(path)
    try:
        yield found
    finally:
        for each in found:
            each.close()
        if path is not None and _inode(path) == bound:
            with contextlib.suppress(OSError):
                path.unlink()


def _taken(error: AddressTakenError) -> UsageError:
    """Name the daemon that has the address, if it is one of this user."""
    try:
        record = daemon_at(error.address)
    except StorageError:
        record = None
    if record is None:
        return error
    return UsageError(
        f"{record.address}: an anespec daemon of yours listens there (pid {record.pid}) and serves "
        f"{listed([printable(name) for name in record.models])}; use that one, end it with `anespec stop "
        f"{record.pid}`, or choose another {error.option} (`anespec ps` shows all)"
    )


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


_LOGGED = ProgressCallbacks(note=_log.warning)


def _terminal_progress() -> ProgressCallbacks:
    """Return the progress display on standard error. -q is read here, since threads do not see it."""
    return ProgressCallbacks(note=_log.info) if is_quiet() else watcher(shown=True)
