"""What llama-server's clients ask, and the API's own description."""

from serving import Running

from anespec.model import Model
from anespec.runtime.server.endpoints import ENDPOINTS


def test_tokens_and_back(served: Running, model: Model) -> None:
    text = "Once upon a time"
    ids = served.client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert ids == model.tokenize(text, add_special=False)
    content = served.client.post("/detokenize", json={"tokens": ids}).json()["content"]
    assert content.strip() == text


def test_pieces_are_the_text_of_their_tokens(served: Running) -> None:
    found = served.client.post("/tokenize", json={"content": "a little dog", "with_pieces": True}).json()
    assert "".join(piece["piece"] for piece in found["tokens"]).strip() == "a little dog"


def test_a_token_outside_the_vocabulary_is_a_bad_request(served: Running) -> None:
    assert served.client.post("/detokenize", json={"tokens": [10**6]}).status_code == 400


def test_props_say_what_is_served(served: Running, model: Model) -> None:
    found = served.client.get("/props").json()
    assert found["total_slots"] == 4
    assert found["default_generation_settings"] == {"n_ctx": model.context}
    assert found["chat_template"] == model.chat_template


def test_the_description_has_every_endpoint_and_every_reference_leads_somewhere(served: Running) -> None:
    found = served.client.get("/openapi.json").json()
    assert sum(map(len, found["paths"].values())) == len(ENDPOINTS)
    names = set(found["components"]["schemas"])
    assert {name.rpartition("/")[2] for name in _references(found)} <= names


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [name for part in value.values() for name in _references(part)]
    return [name for part in value for name in _references(part)] if isinstance(value, list) else []
