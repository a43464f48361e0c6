"""How a daemon ends: answers that have begun end properly, and nobody waits for a client that does not."""

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from patience import PATIENCE
from serving import LoadedModels
from waiting import until

import anespec
from anespec.model import Model
from anespec.runtime.server.app import build_app
from anespec.runtime.server.daemon import Daemon, Lifecycle, Phase
from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.http.errors import ending
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.http.listening import address_text, listen_on
from anespec.runtime.server.http.running import serve_until_ended
from anespec.runtime.server.metrics import Metrics
from anespec.runtime.server.models import Leased
from anespec.runtime.server.options import ServeOptions
from anespec.system.errors import UsageError

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

LONG = {"prompt": "Once", "temperature": 0, "stream": True, "ignore_eos": True, "speculate": False}


class _Patient(Lifecycle):
    """A clock on which the time to end never passes: what runs is waited for, however long that takes."""

    async def drain(self, seconds: float) -> bool:
        return await super().drain(PATIENCE)


class _OutOfTime(Lifecycle):
    """A clock on which the time to end has passed at once."""

    async def drain(self, seconds: float) -> bool:
        return await super().drain(0 if self.phase is Phase.READY else PATIENCE)


class _ClosedModels(LoadedModels):
    """Models that end what runs on them when they are closed, as a pool does."""

    async def close(self) -> None:
        for model in self.loaded.values():
            assert isinstance(model, Model)
            await asyncio.to_thread(model.stop)


@pytest.fixture
def owned(chatty: Path) -> Iterator[Model]:
    """A model that a daemon may close."""
    with anespec.load(chatty, queue=64) as model:
        yield model


def _serve(
    model: Model,
    client: Callable[[str, Lifecycle], None],
    models: type[LoadedModels] = _ClosedModels,
    lifecycle: Lifecycle | None = None,
) -> None:
    """Run a daemon in this thread, the main one, and a client in another; what that raises is raised here."""
    chosen, lifecycle = ServeOptions(port=0), lifecycle or Lifecycle()
    pool, failures = models({"chatty": model}), []
    listening = listen_on(chosen)

    def run() -> None:
        try:
            until(lambda: lifecycle.phase is Phase.READY)
            client(address_text(listening[0]), lifecycle)
        except BaseException as error:
            failures.append(error)
            if lifecycle.phase is not Phase.DRAINING:
                _end()

    thread = threading.Thread(target=run)

    async def serve() -> None:
        async def begin() -> None:
            lifecycle.ready()
            thread.start()

        keys = KeyRing()
        daemon = Daemon("0", chosen, pool, keys, Metrics(pool, keys), lifecycle)
        async with asyncio.timeout(PATIENCE):
            await serve_until_ended(daemon, build_app(daemon, ENDPOINTS), listening, begin)

    asyncio.run(serve())
    thread.join(PATIENCE)
    if failures:
        raise failures[0]


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_stream_that_has_begun_ends_properly_and_nothing_new_begins(owned: Model) -> None:
    def client(url: str, lifecycle: Lifecycle) -> None:
        with (
            httpx.Client(base_url=url, timeout=PATIENCE) as idle,
            httpx.stream(
                "POST", f"{url}/v1/completions", json=LONG | {"max_tokens": 300}, timeout=PATIENCE
            ) as stream,
        ):
            assert idle.get("/health").status_code == 200
            lines = stream.iter_lines()
            next(lines)
            _end()
            until(lambda: lifecycle.phase is Phase.DRAINING)
            refused = httpx.post(f"{url}/v1/completions", json=LONG, timeout=PATIENCE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["connection"] == "close"
            assert int(refused.headers["retry-after"]) > 0
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 503
            assert httpx.get(f"{url}/livez", timeout=PATIENCE).status_code == 200
            said = [line for line in lines if line]
            assert said[-1] == "data: [DONE]"
            assert '"finish_reason":"length"' in said[-2]

    _serve(owned, client)


@pytest.mark.slow
def test_an_idle_connection_is_closed_at_once(owned: Model) -> None:
    def client(url: str, lifecycle: Lifecycle) -> None:
        host, port = url.removeprefix("http://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=PATIENCE) as idle,
            httpx.stream(
                "POST", f"{url}/v1/completions", json=LONG | {"max_tokens": 400}, timeout=PATIENCE
            ) as stream,
        ):
            idle.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = http.client.HTTPResponse(idle)
            answer.begin()
            assert answer.read()
            lines = stream.iter_lines()
            next(lines)
            _end()
            assert idle.recv(1) == b""
            assert [line for line in lines if line][-1] == "data: [DONE]"

    _serve(owned, client)


@pytest.mark.fast_only("told again")
@pytest.mark.parametrize("again", [False, True], ids=["out of time", "told again"])
def test_who_is_not_served_in_time_is_told_so(owned: Model, again: bool) -> None:
    def client(url: str, lifecycle: Lifecycle) -> None:
        with (
            owned.begin([1], anespec.GenerationOptions(max_tokens=500, choices=4, ignore_eos=True)),
            httpx.stream("POST", f"{url}/v1/completions", json=LONG, timeout=PATIENCE) as stream,
        ):
            _end()
            if again:
                until(lambda: lifecycle.phase is Phase.DRAINING)
                _end()
            said = [line for line in stream.iter_lines() if line]
        assert "shutting_down" in said[-1]

    _serve(owned, client, lifecycle=_Patient() if again else _OutOfTime())


def test_nobody_waits_for_a_model_that_is_still_loaded(owned: Model) -> None:
    waiting = threading.Event()

    class Loading(_ClosedModels):
        """Models of which one takes for ever, such as one that is downloaded."""

        @contextlib.asynccontextmanager
        async def lease(self, name: str | None, *wait: object) -> AsyncIterator[Leased]:
            self.stopped = asyncio.Event()
            waiting.set()
            await self.stopped.wait()
            raise ending()
            yield

        def stop_loading(self) -> None:
            self.stopped.set()

    said: list[httpx.Response] = []

    def client(url: str, lifecycle: Lifecycle) -> None:
        ask = threading.Thread(
            target=lambda: said.append(httpx.post(f"{url}/v1/completions", json=LONG, timeout=PATIENCE))
        )
        ask.start()
        assert waiting.wait(PATIENCE)
        _end()
        ask.join()

    _serve(owned, client, Loading, _Patient())
    assert said[0].json()["error"]["code"] == "shutting_down"


@pytest.mark.slow
def test_hanging_up_again_and_again_makes_for_one_reload_more(owned: Model) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    class Slow(_ClosedModels):
        async def reload(self) -> None:
            begun.append(len(begun))
            await asyncio.to_thread(go_on.wait, PATIENCE)
            raise OSError("such as a disk that is gone")

    def client(url: str, lifecycle: Lifecycle) -> None:
        def hang_up() -> None:
            """The answer comes once the signal was heard."""
            os.kill(os.getpid(), signal.SIGHUP)
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200

        hang_up()
        until(lambda: len(begun) == 1)
        for _ in range(20):
            hang_up()
        assert len(begun) == 1
        go_on.set()
        until(lambda: len(begun) == 2)
        hang_up()
        until(lambda: len(begun) == 3)
        _end()

    _serve(owned, client, models=Slow)
    assert len(begun) == 3


def test_two_that_start_at_a_time_do_not_both_serve(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listen_on(ServeOptions(unix=path))[0].close()  # as one that was killed leaves it
    found: list[socket.socket] = []
    refused: list[UsageError] = []
    barrier = threading.Barrier(4)

    def start() -> None:
        barrier.wait()
        try:
            found.extend(listen_on(ServeOptions(unix=path)))
        except UsageError as error:
            refused.append(error)

    starters = [threading.Thread(target=start) for _ in range(4)]
    for each in starters:
        each.start()
    for each in starters:
        each.join(PATIENCE)
    assert (len(found), len(refused)) == (1, 3)
    found[0].close()


def test_a_daemon_that_takes_no_connections_any_more_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as hung, contextlib.ExitStack() as clients:
        hung.bind(str(path))
        hung.listen(0)
        for _ in range(3):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        with pytest.raises(UsageError, match="another program listens there; choose another --unix path"):
            listen_on(ServeOptions(unix=path))


def test_a_unix_socket_is_its_owners_alone_and_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with contextlib.closing(listen_on(ServeOptions(unix=path))[0]):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(UsageError, match="another program listens there; choose another --unix path"):
            listen_on(ServeOptions(unix=path))
    # What a daemon that was killed has left gives way.
    with contextlib.closing(listen_on(ServeOptions(unix=path))[0]):
        assert path.is_socket()
    path.unlink()
    path.write_text("precious")
    with pytest.raises(UsageError, match="not a socket"):
        listen_on(ServeOptions(unix=path))
    assert path.read_text() == "precious"
