"""What a page of another site gets from a daemon on the visitor's machine: nothing, however it asks."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import pytest
from serving import LoadedModels, Running, running
from waiting import until

from anespec.model import Model
from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.models import Leased, ModelCard, Wait, as_long_as_it_takes

PAGE = "https://page.example"

IMAGE = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
VISIT = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
FRAME = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}

GETS = sorted({re.sub(r"\{.*\}", "away", each.path) for each in ENDPOINTS if each.method == "GET"})


class NoLoads(LoadedModels):
    """Of two models one is in memory, and whoever asks for a lease is noted."""

    asked: list[str | None]

    def __init__(self, models: Mapping[str, Model]) -> None:
        super().__init__(models)
        self.asked = []

    @property
    def cards(self) -> Sequence[ModelCard]:
        return [*super().cards, ModelCard("away", 0, loaded=False)]

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None, wait: Wait = as_long_as_it_takes) -> AsyncIterator[Leased]:
        self.asked.append(name)
        async with super().lease(name, wait) as leased:
            yield leased


@pytest.fixture(scope="module")
def visited(model: Model) -> Iterator[Running]:
    """A daemon that pages of one other origin may call."""
    with running(NoLoads({"chatty": model}), allow_origin=(PAGE,)) as found:
        yield found


@pytest.mark.parametrize("site", ["cross-site", "same-site", "cross-site, none", "unheard-of", ""])
@pytest.mark.parametrize("path", ["/props?model=chatty", "/health", "/v1/models", "/page/main.js", "/"])
def test_what_another_sites_page_embeds_is_refused(visited: Running, site: str, path: str) -> None:
    answer = visited.client.get(path, headers=IMAGE | {"sec-fetch-site": site})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_refused"


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_itself_and_who_types_an_address_are_served(visited: Running, site: str) -> None:
    for path in ("/props", "/health", "/"):
        assert visited.client.get(path, headers={"sec-fetch-site": site}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_leads_to_the_page_and_nowhere_else(visited: Running, site: str) -> None:
    came = {"sec-fetch-site": site}
    assert visited.client.get("/", headers=VISIT | came).status_code == 200
    assert visited.client.get("/", headers=FRAME | came).status_code == 403
    assert visited.client.head("/", headers=VISIT | came).status_code == 403
    for path in ("/props?model=chatty", "/metrics", "/v1/models"):
        assert visited.client.get(path, headers=VISIT | came).status_code == 403


def test_a_page_that_may_call_says_its_origin_and_is_served(visited: Running) -> None:
    came = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
    assert visited.client.get("/v1/models", headers=came | {"origin": PAGE}).status_code == 200
    asks = came | {"origin": PAGE, "access-control-request-method": "POST"}
    assert visited.client.options("/v1/chat/completions", headers=asks).status_code == 204
    body = {"prompt": "Once", "max_tokens": 1}
    told = visited.client.post("/v1/completions", json=body, headers=came | {"origin": PAGE})
    assert told.status_code == 200
    # Without its origin nobody knows whose page it is.
    assert visited.client.get("/v1/models", headers=came).status_code == 403


def test_no_get_asks_for_a_model_that_is_not_in_memory(visited: Running) -> None:
    assert isinstance(visited.models, NoLoads)
    before = len(visited.models.asked)
    for path in GETS:
        for method in ("GET", "HEAD", "OPTIONS"):
            for query in ("", "?model=away", "?model=chatty"):
                assert visited.client.request(method, path + query).status_code < 500
    assert visited.models.asked[before:] == []


def test_the_props_of_a_model_that_is_not_in_memory_are_refused_as_llama_server_does(
    visited: Running,
) -> None:
    answer = visited.client.get("/props?model=away")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "model_not_loaded"
    assert "away" in answer.json()["error"]["message"]
    assert visited.client.get("/props?model=chatty").json()["model_path"] == "chatty"
    assert visited.client.get("/props?model=nobody").status_code == 404
    assert visited.client.get("/v1/models/").status_code == 404


def _await_line(caplog: pytest.LogCaptureFixture, said: str) -> None:
    """Wait for a line of the log: it is written once the answer was sent."""
    until(lambda: said in caplog.text, lambda: caplog.text)


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/v1/models", "403 GET /v1/models; "),
        ("GET", "/v1/models/some/name", "403 GET /v1/models/{name:path}; "),
        ("GET", "/nothing", "403 GET an unknown path; "),
    ],
)
def test_the_log_names_the_path_that_was_refused(
    visited: Running, caplog: pytest.LogCaptureFixture, method: str, path: str, said: str
) -> None:
    with caplog.at_level("INFO", "anespec.serve"):
        visited.client.request(method, path, headers={"origin": "https://evil.example"})
        _await_line(caplog, said)


def test_the_log_names_the_path_that_takes_another_method(
    visited: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "anespec.serve"):
        visited.client.delete("/v1/models")
        asks = {"origin": PAGE, "access-control-request-method": "POST"}
        visited.client.options("/v1/completions", headers=asks)
        for said in ("405 DELETE /v1/models; ", "204 OPTIONS /v1/completions; "):
            _await_line(caplog, said)
