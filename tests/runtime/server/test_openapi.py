"""The API's own description."""

import pytest
from openai import InternalServerError, OpenAI
from openapi_spec_validator import validate
from serving import Running

from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.openapi import description


@pytest.mark.parametrize("needs_key", [False, True])
def test_the_description_is_one(needs_key: bool) -> None:
    found = description(ENDPOINTS, "1", needs_key)
    validate(found)
    assert sum(map(len, found["paths"].values())) == len(ENDPOINTS)


def test_what_is_not_served_has_no_answer_but_its_refusal(served: Running) -> None:
    found = served.client.get("/openapi.json").json()["paths"]
    assert set(found["/v1/embeddings"]["post"]["responses"]) == {"4XX", "5XX"}
    assert "200" in found["/v1/completions"]["post"]["responses"]


def test_embeddings_are_refused_at_once(served: Running) -> None:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="none")
    with pytest.raises(InternalServerError, match="no embeddings") as refused:
        client.embeddings.create(model="chatty", input="x")
    assert refused.value.status_code == 501
