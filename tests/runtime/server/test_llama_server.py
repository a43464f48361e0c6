"""What llama-server's clients ask, and the API's own description."""

import json

import pytest
from chat_templates import with_template
from serving import Running, running

from anespec.model import Model
from anespec.runtime.server.endpoints import ENDPOINTS
from anespec.runtime.server.llama.completion import Extra, Gap, infill_prompt
from anespec.runtime.text.special_tokens import InfillIds


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


PROMPT = {"prompt": "Once upon a time", "temperature": 0, "n_predict": 30}


def test_a_completion_is_the_one_that_the_library_gives(served: Running, model: Model) -> None:
    expected = model.generate(PROMPT["prompt"], max_tokens=30)
    found = served.client.post("/completion", json=PROMPT).json()
    assert (found["content"], found["tokens"]) == (expected.text, list(expected.output_ids))
    assert (found["stop"], found["stop_type"], found["tokens_predicted"]) == (True, "limit", 30)
    assert found["timings"]["predicted_n"] == 30
    with served.client.stream("POST", "/completion", json={**PROMPT, "stream": True}) as answer:
        lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert "".join(line["content"] for line in lines) == expected.text
    assert [line["stop"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert len(lines) == 31


def test_a_completion_ends_before_a_stop_string_and_says_so(served: Running, model: Model) -> None:
    text = model.generate(PROMPT["prompt"], max_tokens=30).text
    found = served.client.post("/completion", json={**PROMPT, "stop": [text[10:14]]}).json()
    assert (found["content"], found["stop_type"]) == (text[: text.index(text[10:14])], "word")


@pytest.mark.slow
def test_a_completion_matches_its_grammar(served: Running) -> None:
    def ask(**fields: object) -> dict[str, object]:
        return served.client.post("/completion", json={"prompt": "Once", "n_predict": 20, **fields}).json()

    found = ask(grammar='root ::= "yes" | "no"', seed=-1)
    assert (found["content"] in ("yes", "no"), found["stop_type"]) == (True, "eos")
    assert ask(json_schema={"enum": [4711]})["content"] == "4711"
    for fields, param in (
        ({"grammar": "root ::= ("}, "grammar"),
        ({"json_schema": {"type": "strange"}}, "json_schema"),
        ({"json_schema": {}, "grammar": "x"}, "json_schema"),
        ({"n_predict": "0"}, "n_predict"),
    ):
        error = ask(**fields)["error"]
        assert error["param"] == param, error


def test_a_prompt_alone_is_computed(served: Running) -> None:
    """Editors warm the cache so."""
    asked = {"prompt": "Once upon a time, there was", "n_predict": 0}
    for body in (asked, {**asked, "stream": True}):
        answer = served.client.post("/completion", json=body)
        assert answer.status_code == 200
        last = answer.json() if "stream" not in body else json.loads(answer.text.strip().split("data: ")[-1])
        assert (last["content"], last["tokens"], last["tokens_predicted"]) == ("", [], 0)
        assert (last["stop"], last["stop_type"]) == (True, "limit")
        assert last["tokens_evaluated"] > 4


def test_what_is_no_sampler_of_a_request_is_off(served: Running) -> None:
    def text(**fields: object) -> str:
        asked = {"prompt": "Once upon a time", "n_predict": 12, "seed": 3, "temperature": 4.0, **fields}
        return str(served.client.post("/completion", json=asked).json()["content"])

    greedy = text(temperature=0)
    assert text(top_k=1) == text(top_k=1, samplers=["top_k", "temp"]) == greedy
    assert text(top_k=1, samplers=["temperature", "infill"]) != greedy
    assert text(top_p=0.0, top_k=0, min_p=0, samplers=["top_p", "temperature"]) == greedy
    assert text(samplers=["temperature"]) != text(samplers=[])


def test_a_limit_of_time_ends_the_output(served: Running) -> None:
    asked = {"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": True, "t_max_predict_ms": 0.001}
    answer = served.client.post("/completion", json=asked).json()
    assert answer["stop_type"] == "limit"
    assert 1 <= answer["tokens_predicted"] < 400


MESSAGES = [{"role": "user", "content": "a"}]
GAP = {"input_prefix": "Once upon", "input_suffix": " the end.", "temperature": 0, "n_predict": 8}


def test_a_gap_is_filled(model: Model) -> None:
    marked = with_template(model, "", ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    tokenizer = marked.tokenizer
    last = tokenizer.vocabulary_size
    tokenizer.infill_ids = InfillIds(last - 3, last - 2, last - 1)
    fields = {**GAP, "prompt": " a", "input_extra": [{"filename": "a.txt", "text": "One day"}]}
    gap = Gap("Once upon", " the end.", " a", [Extra("a.txt", "One day")])
    expected = marked.generate(infill_prompt(tokenizer, gap, marked.context, 8), max_tokens=8)
    with running({"marked": marked}) as found:
        answer = found.client.post("/infill", json=fields).json()
        assert (answer["content"], answer["tokens"]) == (expected.text, list(expected.output_ids))
        with found.client.stream("POST", "/infill", json={**fields, "stream": True}) as streamed:
            lines = [json.loads(line[6:]) for line in streamed.iter_lines() if line.startswith("data: ")]
        assert "".join(line["content"] for line in lines) == expected.text
        warmed = found.client.post("/infill", json={**fields, "n_predict": 0})
        assert (warmed.status_code, warmed.json()["content"]) == (200, "")


def test_what_fills_no_gap_says_so(served: Running) -> None:
    refused = served.client.post("/infill", json=GAP)
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "not_supported")
    assert served.client.post("/infill", json={"input_prefix": "a"}).status_code == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Once", "max_tokens": -1}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": -1}),
        pytest.param(
            "/v1/chat/completions",
            {"messages": MESSAGES, "max_completion_tokens": -1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_minus_one_is_no_limit_as_llama_cpp_s_clients_mean_it(
    served: Running, path: str, fields: dict[str, object]
) -> None:
    found = served.client.post(path, json={**fields, "ignore_eos": True, "temperature": 0}).json()
    assert found["usage"]["total_tokens"] > 500
    assert served.client.post(path, json={**fields, "max_tokens": -2}).status_code == 400


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
