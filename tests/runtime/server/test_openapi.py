"""The API's own description."""

import json

import pytest
from described import Described
from openai import InternalServerError, OpenAI
from openapi_spec_validator import validate
from serving import Running
from slow import slow_but
from starlette.responses import Response
from starlette.testclient import TestClient

from anespec.runtime.server import openapi
from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.openapi import description


@pytest.mark.slow
@pytest.mark.parametrize("needs_key", slow_but([False, True], True))
def test_the_description_is_one(needs_key: bool) -> None:
    found = description(ENDPOINTS, "1", needs_key)
    validate(found)
    assert sum(map(len, found["paths"].values())) == len(ENDPOINTS)


def test_it_is_written_once(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    first = served.client.get("/openapi.json")
    monkeypatch.setattr(openapi, "description", None)
    again = served.client.get("/openapi.json")
    assert again.status_code == 200
    assert again.content == first.content


def test_what_is_not_served_has_no_answer_but_its_refusal(served: Running) -> None:
    found = served.client.get("/openapi.json").json()["paths"]
    assert set(found["/v1/embeddings"]["post"]["responses"]) == {"4XX", "5XX"}
    assert "200" in found["/v1/completions"]["post"]["responses"]


def test_parameters_are_told_by_where_they_stand(served: Running) -> None:
    found = served.client.get("/openapi.json").json()["paths"]
    model = {"name": "model", "in": "query", "required": False, "schema": {"type": "string"}}
    assert found["/props"]["get"]["parameters"] == [model]
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    assert found["/v1/models/{name}"]["get"]["parameters"] == [name]
    assert "parameters" not in found["/v1/completions"]["post"]


def test_embeddings_are_refused_at_once(served: Running) -> None:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="none")
    with pytest.raises(InternalServerError, match="no embeddings") as refused:
        client.embeddings.create(model="chatty", input="x")
    assert refused.value.status_code == 501


@pytest.mark.parametrize(
    ("status", "media", "body", "strays"),
    [
        (200, "application/json", {"version": "1"}, 0),
        (200, "application/json", {"version": 1}, 1),
        (200, "text/plain", {"version": "1"}, 1),
        (204, "application/json", {}, 1),
        (404, "application/json", {"error": "no"}, 0),
        (404, "application/json", {"error": {"message": "no"}}, 1),
    ],
)
def test_an_answer_that_is_not_as_described_is_noticed(
    status: int, media: str, body: object, strays: int
) -> None:
    app = Described(Response(json.dumps(body), status, media_type=media), description(ENDPOINTS, "1", False))
    assert TestClient(app).get("/api/version").status_code == status
    assert len(app.strays) == strays
