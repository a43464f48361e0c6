"""A daemon within the test's process, on a real socket, over models that are loaded already."""

import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from described import Described
from patience import PATIENCE

from anespec.model import Model
from anespec.runtime.engine.engine import Engine
from anespec.runtime.server.app import build_app
from anespec.runtime.server.daemon import Daemon, Lifecycle
from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.http.endpoint import Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.http.listening import listen_on
from anespec.runtime.server.http.running import Server, server_of
from anespec.runtime.server.metrics import Metrics
from anespec.runtime.server.models import Leased, ModelCard, ServingModel, Wait, as_long_as_it_takes
from anespec.runtime.server.openapi import description
from anespec.runtime.server.options import ServeOptions

PATIENT = {"port": 0, "receive_seconds": PATIENCE, "send_seconds": PATIENCE}
"""The options of a daemon, unless a test has its own: on a busy machine no client is given up."""


class LoadedModels:
    """Models that are there for the test's whole life."""

    def __init__(self, models: Mapping[str, ServingModel]) -> None:
        self.loaded = models
        self.leases = 0

    @property
    def cards(self) -> Sequence[ModelCard]:
        return [ModelCard(name, 0, True, model.context) for name, model in self.loaded.items()]

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None, wait: Wait = as_long_as_it_takes) -> AsyncIterator[Leased]:
        found = name or next(iter(self.loaded))
        if found not in self.loaded:
            raise ApiError(404, "there is no such model", "model_not_found", "model")
        self.leases += 1
        try:
            yield Leased(found, self.loaded[found])
        finally:
            self.leases -= 1

    async def reload(self) -> None:
        pass

    def stop_loading(self) -> None:
        pass

    async def close(self) -> None:
        pass


def _stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Return what each thread of the process runs now, and what each task of the loop waits for."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        f"{names.get(ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join([*threads, *(_chain(task) for task in asyncio.all_tasks(loop))])


def _chain(task: asyncio.Task[Any]) -> str:
    """Return a task and the lines at which its coroutines wait."""
    lines = [repr(task)]
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else repr(waiting))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return "\n    ".join(lines)


@dataclass(frozen=True)
class Running:
    """A daemon that serves at `url`."""

    url: str
    daemon: Daemon
    models: LoadedModels
    client: httpx.Client
    loop: asyncio.AbstractEventLoop
    connections: set[Any]

    def let_pass(self, seconds: float) -> None:
        """Put the clock of the daemon's timers forward: what was to come until then is due."""
        done = threading.Event()

        def jump() -> None:
            before = self.loop.time
            self.loop.time = lambda: before() + seconds  # type: ignore[method-assign]
            done.set()

        self.loop.call_soon_threadsafe(jump)
        assert done.wait(PATIENCE)


@contextlib.contextmanager
def standing_still(model: Model) -> Iterator[None]:
    """Keep the engine from its next pass while the block lasts."""
    stands, may_go_on = threading.Event(), threading.Event()

    def stand(_: Engine) -> None:
        stands.set()
        may_go_on.wait(PATIENCE)

    holding = threading.Thread(target=model._running.service.call, args=(stand,))
    holding.start()
    assert stands.wait(PATIENCE)
    try:
        yield
    finally:
        may_go_on.set()
        holding.join()


@contextlib.contextmanager
def running(
    models: Mapping[str, ServingModel] | LoadedModels,
    keys: KeyRing | None = None,
    endpoints: Sequence[Endpoint] = ENDPOINTS,
    **options: object,
) -> Iterator[Running]:
    """Serve models while the block lasts, on a free port. All answers must be as they are described."""
    loaded = models if isinstance(models, LoadedModels) else LoadedModels(models)
    chosen = ServeOptions(**{**PATIENT, **options})
    listening = listen_on(chosen)
    url = f"http://127.0.0.1:{listening[0].getsockname()[1]}"
    begun = threading.Event()
    found: list[tuple[Server, Daemon, Described, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        lifecycle = Lifecycle()
        ring = keys or KeyRing()
        daemon = Daemon("0", chosen, loaded, ring, Metrics(loaded, ring), lifecycle)
        app = Described(build_app(daemon, endpoints), description(endpoints, "0", daemon.keys.needed))
        server = server_of(app, chosen)
        lifecycle.ready()
        found.append((server, daemon, app, asyncio.get_running_loop()))
        begun.set()
        await server.serve(sockets=[*listening])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    server, daemon, app, loop = found[0]
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        try:
            yield Running(url, daemon, loaded, client, loop, server.server_state.connections)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), _stacks(loop)
            assert not app.strays, "\n".join(app.strays[:5])
