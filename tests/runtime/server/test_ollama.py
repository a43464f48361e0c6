"""Ollama's API, as its own client sees it."""

import hashlib
import json
from datetime import UTC, datetime

import httpx
import pytest
from ollama import Client, ResponseError
from serving import Running, running
from waiting import until

from anespec.model import Model
from anespec.runtime.server.http.keys import Key, KeyRing

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once upon a time"}]
GREEDY = {"temperature": 0, "num_predict": 40}


@pytest.fixture
def client(served: Running) -> Client:
    return Client(host=served.url)


@pytest.mark.slow
def test_a_chat_is_the_one_that_the_library_gives(client: Client, model: Model) -> None:
    expected = model.chat(MESSAGES, max_tokens=40, temperature=0.8, top_k=40, top_p=0.9, seed=7)
    found = client.chat("chatty", MESSAGES, options={"seed": 7, "num_predict": 40, "num_ctx": 99})
    assert (found.message.role, found.message.content) == ("assistant", expected.text)
    assert (found.model, found.done, found.done_reason) == ("chatty", True, "length")
    assert (found.prompt_eval_count, found.eval_count) == (len(expected.prompt_ids), 40)
    assert found.total_duration > found.eval_duration > 0
    assert found.prompt_eval_duration > 0
    assert abs(datetime.fromisoformat(found.created_at) - datetime.now(UTC)).total_seconds() < 60


def test_a_stream_is_lines_and_the_last_one_counts(client: Client, model: Model) -> None:
    expected = model.chat(MESSAGES, max_tokens=40).text
    lines = list(client.chat("chatty", MESSAGES, stream=True, options=GREEDY))
    assert "".join(line.message.content for line in lines) == expected
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert len(lines) > 10
    assert lines[-1].message.content == ""
    assert (lines[-1].done_reason, lines[-1].eval_count) == ("length", 40)
    assert lines[0].eval_count is None


def test_streaming_is_the_default(served: Running) -> None:
    answer = served.client.post(
        "/api/chat", json={"model": "chatty", "messages": MESSAGES, "options": GREEDY}
    )
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert len(answer.text.splitlines()) > 10


@pytest.mark.slow
def test_a_prompt_is_answered_as_a_chat_is_and_a_raw_one_continued(client: Client, model: Model) -> None:
    told = client.generate("chatty", "Once upon a time", system="Be brief.", options=GREEDY)
    assert told.response == model.chat(MESSAGES, max_tokens=40).text
    raw = client.generate("chatty", "Once upon a time", raw=True, options=GREEDY)
    assert raw.response == model.generate("Once upon a time", max_tokens=40).text
    streamed = client.generate("chatty", "Once upon a time", raw=True, options=GREEDY, stream=True)
    assert "".join(line.response for line in streamed) == raw.response


def test_stop_ends_the_answer_before_it(client: Client, model: Model) -> None:
    text = model.chat(MESSAGES, max_tokens=40).text
    found = client.chat("chatty", MESSAGES, options={**GREEDY, "stop": [text[10:14]]})
    assert found.message.content == text[: text.index(text[10:14])]
    assert found.done_reason == "stop"


@pytest.mark.slow
def test_format_is_what_comes(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"way": {"enum": ["left", "right"]}},
        "required": ["way"],
        "additionalProperties": False,
    }
    found = client.chat("chatty", MESSAGES, format=schema, options={"num_predict": 400, "temperature": 0})
    assert json.loads(found.message.content)["way"] in ("left", "right")
    found = client.generate("chatty", "x", format=schema, options={"num_predict": 400, "temperature": 0})
    assert json.loads(found.response)["way"] in ("left", "right")
    begun = client.generate("chatty", "x", format="json", options={"num_predict": 4}).response
    assert begun.lstrip().startswith("{")


def test_logprobs_are_those_of_the_tokens(client: Client, model: Model) -> None:
    expected = [token.logprob for token in model.chat(MESSAGES, max_tokens=6, logprobs=2).choices[0].tokens]
    fields = {"options": {"temperature": 0, "num_predict": 6}, "logprobs": True, "top_logprobs": 2}
    whole = client.chat("chatty", MESSAGES, **fields).logprobs
    streamed = [
        entry
        for line in client.chat("chatty", MESSAGES, stream=True, **fields)
        for entry in line.logprobs or []
    ]
    assert [entry.logprob for entry in whole] == expected
    assert streamed == whole
    assert all(len(entry.top_logprobs) == 2 for entry in whole)


def test_without_text_the_model_is_loaded(client: Client) -> None:
    for found in (client.generate("chatty"), client.chat("chatty", [])):
        assert (found.done, found.done_reason) == (True, "load")
    with pytest.raises(ResponseError, match="not unloaded"):
        client.generate("chatty", keep_alive=0)


def test_what_there_is_can_be_listed(client: Client, model: Model) -> None:
    (entry,) = client.list().models
    assert entry.model == "chatty"
    assert entry.size > 0
    assert len(entry.digest) == 64
    assert entry.details.family == "llama"
    (loaded,) = client.ps().models
    assert (loaded.name, loaded.context_length, loaded.digest) == ("chatty", model.context, entry.digest)
    shown = client.show("chatty:latest")
    assert shown.template == model.chat_template
    assert shown.modelinfo["llama.context_length"] == model.context
    assert shown.capabilities == ["completion"]


def test_the_version_is_told(served: Running) -> None:
    assert served.client.get("/api/version").json() == {"version": served.daemon.version}


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"model": "llama3.2"}, 404, "no such model"),
        ({"model": ""}, 400, "model"),
        ({"prompt": "x", "options": {"temperature": "hot"}}, 400, "options.temperature"),
        ({"prompt": "x", "options": {"min_p": 2}}, 400, "options.min_p"),
        ({"prompt": "x", "suffix": "y"}, 400, "suffix"),
        ({"prompt": "x", "template": "y"}, 400, "template"),
        ({"prompt": "x", "context": [1]}, 400, "context"),
        ({"prompt": "x", "images": ["aGk="]}, 400, "only text"),
        ({"prompt": "x", "raw": True, "system": "y"}, 400, "system"),
        ({"prompt": "x", "format": "xml"}, 400, "format"),
        ({"prompt": "x", "top_logprobs": 1}, 400, "top_logprobs"),
        ({"prompt": "word " * 2000}, 400, "the prompt"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(
    served: Running, fields: dict[str, object], status: int, reason: str
) -> None:
    answer = served.client.post("/api/generate", json={"model": "chatty", **fields})
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert reason in answer.json()["error"]
    assert "messages" not in answer.json()["error"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "images": ["aGk="]},
        {"role": "pirate", "content": "x"},
        {"role": "user"},
    ],
)
def test_messages_that_cannot_be_read_are_named(served: Running, message: dict[str, object]) -> None:
    answer = served.client.post("/api/chat", json={"model": "chatty", "messages": [message]})
    assert answer.status_code == 400
    assert "messages.0" in answer.json()["error"]


def test_what_ollama_has_and_this_has_not_is_said(client: Client) -> None:
    for ask in (
        lambda: client.embed("chatty", "x"),
        lambda: client.embeddings("chatty", "x"),
        lambda: client.pull("llama3.2"),
        lambda: client.delete("chatty"),
    ):
        with pytest.raises(ResponseError) as refused:
            ask()
        assert refused.value.status_code == 501
        assert "this daemon" in refused.value.error or "command line" in refused.value.error


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("stated", [FORM, None])
def test_a_body_may_come_as_curl_sends_it(served: Running, stated: str | None) -> None:
    headers = {} if stated is None else {"content-type": stated}
    answer = served.client.post("/api/show", content=b'{"model": "chatty"}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": FORM, "origin": "http://evil.example"}, 403),
        ({"content-type": FORM, "origin": "null"}, 403),
        ({"content-type": FORM, "sec-fetch-site": "cross-site"}, 403),
        ({"content-type": FORM, "sec-fetch-site": "same-origin"}, 415),
        ({"content-type": FORM, "referer": "http://evil.example/"}, 415),
        ({"host": "evil.example"}, 403),
    ],
)
def test_a_page_of_another_site_cannot_send_one(
    served: Running, headers: dict[str, str], status: int
) -> None:
    answer = served.client.post("/api/show", content=b'{"model": "chatty"}', headers=headers)
    assert answer.status_code == status


def test_other_apis_take_nothing_but_json(served: Running) -> None:
    answer = served.client.post("/v1/completions", content=b'{"prompt": "x"}', headers={"content-type": FORM})
    assert answer.status_code == 415


def test_a_client_that_leaves_ends_its_answer(served: Running, model: Model) -> None:
    fields = {"model": "chatty", "messages": MESSAGES, "options": {"num_predict": 400}}
    with httpx.stream("POST", f"{served.url}/api/chat", json=fields) as answer:
        next(answer.iter_lines())
    until(lambda: not model.load.active)


def test_a_key_is_asked_for_in_ollamas_words(model: Model) -> None:
    keys = KeyRing([Key("me", hashlib.sha256(b"a key of mine").digest())])
    with running({"chatty": model}, keys) as found:
        with pytest.raises(ResponseError, match="key") as refused:
            Client(host=found.url).list()
        assert refused.value.status_code == 401
        headers = {"authorization": "Bearer a key of mine"}
        assert [entry.model for entry in Client(host=found.url, headers=headers).list().models] == ["chatty"]
