"""A field that constrains an answer is served or refused by its name, on every endpoint for texts."""

import json
import re
from typing import Any

import ollama._types
import pytest
from anthropic.types import message_create_params as of_messages
from anthropic.types.beta import message_create_params as of_new_messages
from bodies import required_of
from field_table import DOCS, WITHOUT_EFFECT, served_by, text_endpoints, written
from openai import BadRequestError, OpenAI
from openai.types import completion_create_params as of_completions
from openai.types.chat import completion_create_params as of_chat
from openai.types.responses import response_create_params as of_responses
from serving import Running

from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.meaning import MEANINGS

BODIES = text_endpoints()
LLAMA_SERVERS = re.findall(
    r"\w+",
    """
    temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent n_keep stream stop
    typical_p repeat_penalty repeat_last_n presence_penalty frequency_penalty dry_multiplier dry_base
    dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability xtc_threshold mirostat
    mirostat_tau mirostat_eta grammar json_schema seed ignore_eos logit_bias n_probs min_keep
    t_max_predict_ms id_slot cache_prompt return_tokens samplers timings_per_token return_progress
    post_sampling_probs response_fields lora prompt input_prefix input_suffix input_extra
    chat_template_kwargs reasoning_format parse_tool_calls parallel_tool_calls
""",
)
"""Of its README."""

VLLMS = re.findall(
    r"\w+",
    """
    use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words echo add_generation_prompt
    continue_final_message documents chat_template chat_template_kwargs structured_outputs guided_json
    guided_regex guided_choice guided_grammar priority request_id cache_salt logits_processors
    return_tokens_as_token_ids
""",
)

ASKING: dict[str, object] = {
    "modalities": ["audio"],
    "truncation": "auto",
    "parallel_tool_calls": "no",
    "parse_tool_calls": False,
    "skip_special_tokens": False,
    "penalize_newline": False,
    "add_generation_prompt": False,
}
"""Values that ask for something, for fields for which 7 is none."""


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/chat/completions", of_chat.CompletionCreateParamsBase.__annotations__),
        ("/v1/completions", of_completions.CompletionCreateParamsBase.__annotations__),
        ("/v1/responses", of_responses.ResponseCreateParamsBase.__annotations__),
        ("/v1/messages", of_messages.MessageCreateParamsBase.__annotations__),
        ("/v1/messages", of_new_messages.MessageCreateParamsBase.__annotations__),
        ("/api/chat", ollama._types.ChatRequest.model_fields),
        ("/api/generate", ollama._types.GenerateRequest.model_fields),
        *((path, [*LLAMA_SERVERS, *VLLMS]) for path in BODIES),
    ],
)
def test_every_field_of_these_apis_is_known(path: str, names: Any) -> None:
    assert {*names} <= served_by(BODIES[path]) | MEANINGS.keys() | {*WITHOUT_EFFECT, "input_extra"} | {
        *("input_prefix", "input_suffix", "prompt"),
    }


def test_a_field_without_effect_has_no_meaning_elsewhere() -> None:
    assert not MEANINGS.keys() & {*WITHOUT_EFFECT}


@pytest.mark.parametrize("path", BODIES)
def test_what_an_endpoint_does_not_have_is_refused_by_name(path: str) -> None:
    kind = BODIES[path]
    has = {name for name in MEANINGS if name in served_by(kind) and name not in ("stop", "seed")}
    lacks = [name for name in MEANINGS if name not in {*kind.model_fields, *served_by(kind)}]
    assert len(lacks) > 40 and has
    for name in lacks:
        wanted = json.dumps({**required_of(kind), name: ASKING.get(name, 7)})
        with pytest.raises(ApiError) as refused:
            kind.model_validate_json(wanted)
        assert (refused.value.status, refused.value.param) == (400, name)
        assert refused.value.message.startswith(f"{name} is not supported here; ")
        for nothing in MEANINGS[name].neutral:
            body = kind.model_validate_json(json.dumps({**required_of(kind), name: nothing}))
            assert not body.__pydantic_extra__, "what is ignored is forgotten"


def test_options_of_ollama_are_known_one_by_one(served: Running) -> None:
    known = served_by(BODIES["/api/chat"]) | MEANINGS.keys() | {*WITHOUT_EFFECT}
    machine = {*("num_gpu", "main_gpu", "num_batch", "num_thread", "num_ctx", "num_keep", "numa", "low_vram")}
    machine |= {*("f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only")}
    assert {*ollama._types.Options.model_fields} <= known | machine
    asked = {"model": "chatty", "prompt": "x", "options": {"mirostat": 2, "num_ctx": 99}}
    answer = served.client.post("/api/generate", json=asked)
    assert answer.status_code == 400
    assert answer.json() == {"error": "options.mirostat is not supported here; leave it out"}


def test_the_page_has_the_table() -> None:
    assert DOCS.read_text() == written(), "write it anew: python tests/support/field_table.py"


SCHEMA = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}
FORMS: list[dict[str, object]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"json_schema": SCHEMA},
    {"grammar": r'root ::= "{\"n\": " [12] "}"'},
]


@pytest.mark.parametrize("form", FORMS, ids=["response_format", "json_schema", "grammar"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_a_form_of_the_answer_holds(served: Running, path: str, form: dict[str, object]) -> None:
    asked = {
        "prompt": "Once",
        "messages": [{"role": "user", "content": "Once"}],
        "max_tokens": 120,
        "temperature": 0,
        **form,
    }
    asked.pop("prompt" if "chat" in path else "messages")
    answer = served.client.post(path, json=asked).json()
    text = answer.get("content")
    if text is None:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "chat" in path else choice["text"]
    # White space may go on until the answer's limit.
    assert re.match(r'\s*\{\s*"n"\s*:\s*[12]\s*(\}|\Z)', text)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_two_forms_cannot_hold_together(served: Running, path: str) -> None:
    asked = {"prompt": "Once", "messages": [{"role": "user", "content": "Once"}], **FORMS[1], **FORMS[2]}
    asked.pop("prompt" if "chat" in path else "messages")
    answer = served.client.post(path, json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "grammar and json_schema cannot hold together; leave one out"


def test_a_wrong_form_is_named(served: Running) -> None:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(BadRequestError) as refused:
        client.completions.create(model="chatty", prompt="x", extra_body={"grammar": "root ::= ("})
    assert refused.value.param == "grammar"
