"""Who waits for a model that is being loaded waits no longer than for an answer, and as one of so many."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE
from serving import LoadedModels, Running, running
from waiting import until

from anespec.model import Model
from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.server.daemon import LoadingLine
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.models import Leased, Wait, as_long_as_it_takes

MANY, ONE = "many-0123456789abcdef", "one-0123456789abcdef"
FIELDS = {"model": "chatty", "prompt": "Once", "max_tokens": 1}


class Loading(LoadedModels):
    """Models that are not there before `come` is set."""

    def __init__(self, model: Model) -> None:
        super().__init__({"chatty": model})
        self.come = threading.Event()

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None, wait: Wait = as_long_as_it_takes) -> AsyncIterator[Leased]:
        async def loaded() -> None:
            while not self.come.is_set():
                await asyncio.sleep(0.01)

        if not self.come.is_set():
            await wait(loaded)
        async with super().lease(name, wait) as leased:
            yield leased


@contextlib.contextmanager
def loading(model: Model, folder: Path, **options: object) -> Iterator[tuple[Running, Loading]]:
    (folder / "keys").touch(mode=0o600)
    (folder / "keys").write_text(f"many:{MANY}\none:{ONE}\n")
    models = Loading(model)
    with running(models, KeyRing.of_file(folder / "keys"), **options) as found:
        yield found, models


def ask(found: Running, key: str, path: str = "/v1/completions", **fields: object) -> httpx.Response:
    bearer = {"authorization": f"Bearer {key}"}
    return httpx.post(found.url + path, json={**FIELDS, **fields}, headers=bearer, timeout=PATIENCE)


@pytest.mark.slow
def test_who_goes_away_is_waited_for_no_longer(model: Model, tmp_path: Path) -> None:
    body = json.dumps(FIELDS).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {MANY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with loading(model, tmp_path) as (found, _):
        host, port = found.url.removeprefix("http://").split(":")
        clients = [socket.create_connection((host, int(port))) for _ in range(20)]
        for client in clients:
            client.sendall(head.encode() + body)
        until(lambda: len(found.daemon.loading) == 20)
        for client in clients:
            client.close()
        until(lambda: len(found.daemon.loading) == 0)
        until(lambda: found.daemon.lifecycle.answering == 0)


@pytest.mark.slow
def test_no_more_of_an_owner_wait_than_may_and_another_one_may_too(model: Model, tmp_path: Path) -> None:
    with loading(model, tmp_path, queue=3) as (found, models), ThreadPoolExecutor(4) as clients:
        waiting = [clients.submit(ask, found, MANY) for _ in range(3)]
        until(lambda: len(found.daemon.loading) == 3)
        refused = ask(found, MANY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert refused.headers["retry-after"] == "5"
        waiting.append(clients.submit(ask, found, ONE))
        until(lambda: len(found.daemon.loading) == 4)
        assert ask(found, ONE, n=3).status_code == 429, "each choice is one that waits"
        models.come.set()
        assert [each.result().status_code for each in waiting] == [200] * 4
        assert not found.daemon.loading._waiting


@pytest.mark.fast_only("/api/generate")
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/api/generate"])
def test_nobody_waits_longer_than_a_request_may_take(model: Model, tmp_path: Path, path: str) -> None:
    own: dict[str, dict[str, Any]] = {
        "/api/generate": {"prompt": "", "max_tokens": None},
        "/tokenize": {"content": "Once"},
    }
    with loading(model, tmp_path, request_seconds=0.2) as (found, _):
        answer = ask(found, MANY, path, **own.get(path, {}))
        assert answer.status_code == 503
        assert "the request's time limit passed" in answer.text
        assert len(found.daemon.loading) == 0


def test_a_place_is_given_back_whatever_happens() -> None:
    line = LoadingLine()
    with pytest.raises(KeyError), line.place("me", "m", 2, 3):
        with line.place("you", "m", 3, 3), line.place("me", "other", 3, 3):
            assert len(line) == 8
        with pytest.raises(QueueFullError), line.place("me", "m", 2, 3):
            pass
        raise KeyError
    assert len(line) == 0
