"""A request whose client goes away before its turn ends then: it keeps no place and no model."""

import asyncio
import http.client
import json
from collections.abc import Iterator

import pytest
from patience import PATIENCE
from serving import LoadedModels, Running, running
from waiting import until

from anespec.model import Model
from anespec.runtime.server.http.shares import PreparationTime

LEFT = 5
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def narrow(model: Model) -> Iterator[Running]:
    """A daemon whose counts no other test changes."""
    with running(LoadedModels({"chatty": model})) as found:
        yield found


def sent(found: Running, path: str) -> http.client.HTTPConnection:
    client = http.client.HTTPConnection(found.url.removeprefix("http://"), timeout=PATIENCE)
    body = {"prompt": "Once", "content": "Once", "max_tokens": 2}
    client.request("POST", path, json.dumps(body), JSON)
    return client


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_who_goes_away_while_others_have_the_time_is_waited_for_no_longer(
    narrow: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: PreparationTime, name: str) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as held:
        held.setattr(PreparationTime, "turn", never)
        held.setattr(PreparationTime, "is_turn", lambda self, name: False, raising=False)
        clients = [sent(narrow, path) for _ in range(LEFT)]
        until(lambda: narrow.daemon.lifecycle.answering == LEFT)
        for client in clients:
            client.close()
        until(lambda: narrow.daemon.lifecycle.answering == 0)
    assert narrow.models.leases == 0
    assert sent(narrow, path).getresponse().status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_who_goes_away_while_others_are_prepared_keeps_no_place(
    narrow: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = 0

    async def never(self: asyncio.Semaphore) -> None:
        nonlocal waiting
        waiting += 1
        await asyncio.Event().wait()

    with monkeypatch.context() as held:
        held.setattr(asyncio.Semaphore, "__aenter__", never)
        clients = [sent(narrow, path) for _ in range(LEFT)]
        until(lambda: waiting == LEFT)
        assert narrow.models.leases == LEFT
        for client in clients:
            client.close()
        until(lambda: narrow.daemon.lifecycle.answering == 0)
    assert narrow.models.leases == 0
    assert not narrow.daemon.preparations._tenants
    assert sent(narrow, path).getresponse().status == 200
