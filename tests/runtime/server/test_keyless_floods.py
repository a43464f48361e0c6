"""Whoever has no key takes a share of the daemon's time at most, and so many connections."""

import asyncio
import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from serving import Running, running
from waiting import until

from anespec.model import Model
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.http.shares import PreparationTime
from anespec.runtime.server.http.streams import unless

KEY = "first-key-0123456789"
BEARER = {"Authorization": f"Bearer {KEY}"}
MOST = 3


@pytest.fixture
def guarded(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A daemon with a key, which takes three connections of an address without it."""
    monkeypatch.setattr("anespec.runtime.server.http.running.KEYLESS_CONNECTIONS", MOST)
    (tmp_path / "keys").touch(mode=0o600)
    (tmp_path / "keys").write_text(f"first:{KEY}\n")
    ring = KeyRing.of_file(tmp_path / "keys")
    with running({"chatty": model}, ring, api_key_file=tmp_path / "keys") as found:
        yield found


@contextlib.contextmanager
def connected(found: Running) -> Iterator[http.client.HTTPConnection]:
    client = http.client.HTTPConnection(found.url.removeprefix("http://"), timeout=PATIENCE)
    try:
        client.connect()
        yield client
    finally:
        client.close()


def status(client: http.client.HTTPConnection, path: str = "/livez", **headers: str) -> tuple[int, str]:
    client.request("GET", path, headers=headers)
    answer = client.getresponse()
    said = json.loads(answer.read())
    return answer.status, said.get("error", {}).get("code", "") if isinstance(said, dict) else ""


@pytest.mark.slow
def test_open_paths_and_refusals_count_as_nobody_s_looks(
    guarded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = PreparationTime.look

    async def noting(self: PreparationTime, name: str) -> None:
        looks.append(name)
        await look(self, name)

    monkeypatch.setattr(PreparationTime, "look", noting)
    with connected(guarded) as client:
        for path, headers, expected in (
            ("/livez", {}, 200),
            ("/openapi.json", {}, 200),
            ("/v1/models", {}, 401),
            ("/nothing", {}, 404),
            ("/v1/completions", {}, 405),
            ("/livez", {"Host": "elsewhere.example"}, 403),
        ):
            assert status(client, path, **headers)[0] == expected
        assert looks == [""] * 6
        looks.clear()
        assert status(client, "/v1/models", **BEARER)[0] == 200
        assert len(looks) == 1 and looks[0].startswith("first ")
        looks.clear()
        body = json.dumps({"prompt": "Once", "max_tokens": 1})
        client.request("POST", "/v1/completions", body, {**BEARER, "Content-Type": "application/json"})
        assert client.getresponse().status == 200
        assert not looks, "it is counted as it goes"


def test_who_goes_away_while_it_waits_for_its_turn_is_waited_for_no_longer(
    guarded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: PreparationTime, name: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(PreparationTime, "look", never)
    monkeypatch.setattr(PreparationTime, "is_turn_to_look", lambda self, name: False)
    with connected(guarded) as client:
        client.request("GET", "/v1/models", headers=BEARER)
        until(lambda: guarded.daemon.lifecycle.answering == 1)
    until(lambda: guarded.daemon.lifecycle.answering == 0)


def test_an_address_has_so_many_connections_without_a_key(guarded: Running) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(MOST):
            assert status(held.enter_context(connected(guarded))) == (200, "")
        with connected(guarded) as beyond:
            assert status(beyond) == (503, "too_many_connections")
            assert beyond.sock is None, "it is closed"
        keyed = held.enter_context(connected(guarded))
        assert status(keyed, "/v1/models", **BEARER) == (200, "")
        assert status(keyed) == (200, ""), "a key has come on it"
        with connected(guarded) as beyond:
            assert status(beyond, "/v1/models", Authorization="Bearer another-key-0123456789")[0] == 503

    def is_free() -> bool:
        with connected(guarded) as client:
            return status(client) == (200, "")

    until(is_free)


@pytest.mark.slow
def test_a_connection_beyond_those_that_says_nothing_is_left_soon(
    guarded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anespec.runtime.server.http.connections.SILENT_SECONDS", 0.1)
    with contextlib.ExitStack() as held:
        held.enter_context(contextlib.suppress(OSError))
        first = [held.enter_context(connected(guarded)) for _ in range(MOST)]
        assert status(first[-1]) == (200, "")
        beyond = held.enter_context(connected(guarded))
        assert beyond.sock.recv(1) == b"", "ended, long before --receive-seconds"
        assert status(first[0]) == (200, ""), "those before it stay"


def test_work_is_given_up_where_the_connection_has_gone() -> None:
    async def scene() -> None:
        gone, ended = asyncio.Event(), []

        async def work(seconds: float) -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                ended.append(seconds)

        await unless(gone, work(0.0))
        asyncio.get_running_loop().call_soon(gone.set)
        async with asyncio.timeout(PATIENCE):
            await unless(gone, work(1000.0))
        assert ended == [0.0, 1000.0]

    asyncio.run(scene())


SECOND = "second-key-0123456789"


@pytest.fixture
def full(model: Model, tmp_path: Path) -> Iterator[Running]:
    """A daemon with two keys and eight connections."""
    (tmp_path / "keys").touch(mode=0o600)
    (tmp_path / "keys").write_text(f"first:{KEY}\nsecond:{SECOND}\n")
    ring = KeyRing.of_file(tmp_path / "keys")
    with running({"chatty": model}, ring, api_key_file=tmp_path / "keys", connections=8) as found:
        yield found


def test_a_key_that_holds_many_connections_leaves_some_to_the_others(full: Running) -> None:
    with contextlib.ExitStack() as held:
        own = [held.enter_context(connected(full)) for _ in range(8)]
        said = [status(client, "/v1/models", **BEARER) for client in own]
        assert said == [(200, "")] * 2 + [(503, "too_many_connections")] * 6
        assert status(own[0], "/v1/models", **BEARER) == (200, ""), "those that it has stay"
        other = held.enter_context(connected(full))
        assert status(other, "/v1/models", Authorization=f"Bearer {SECOND}") == (200, "")
        assert status(held.enter_context(connected(full))) == (200, "")
        assert status(own[0], "/v1/models", Authorization=f"Bearer {SECOND}") == (200, "")
        assert status(held.enter_context(connected(full)), "/v1/models", **BEARER)[0] == 200, "one is free"


def test_a_key_counts_from_a_request_s_head_on(full: Running) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(2):
            client = held.enter_context(connected(full))
            client.putrequest("POST", "/v1/completions")
            client.putheader("Authorization", f"Bearer {KEY}")
            client.putheader("Content-Type", "application/json")
            client.putheader("Content-Length", "100")
            client.endheaders(b"{")
        until(lambda: full.daemon.lifecycle.answering == 2)
        assert status(held.enter_context(connected(full)), "/v1/models", **BEARER)[0] == 503


def test_where_all_connections_are_taken_silent_ones_give_way_to_new_ones(full: Running) -> None:
    with contextlib.ExitStack() as held:
        held.enter_context(contextlib.suppress(OSError))
        keyed = held.enter_context(connected(full))
        assert status(keyed, "/v1/models", **BEARER) == (200, "")
        silent = [held.enter_context(connected(full)) for _ in range(12)]
        assert status(held.enter_context(connected(full)), "/v1/models", **BEARER) == (200, "")
        assert silent[0].sock.recv(1) == b"", "the oldest one"
        assert status(keyed, "/v1/models", **BEARER) == (200, ""), "none with a key"
