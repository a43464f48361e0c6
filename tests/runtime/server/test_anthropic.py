"""Anthropic's API, as its own client sees it."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import (
    Anthropic,
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    RateLimitError,
)
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter
from serving import Running, running

from anespec.model import Model
from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.server.anthropic import messages as served_messages
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import Key, KeyRing

TEXT = "Once upon a time"
USER: Any = {"role": "user", "content": TEXT}
SAMPLED = {"max_tokens": 40, "temperature": 0}
"""For requests without the client, whose newest version has no parameter for the temperature."""
GREEDY: Any = {"max_tokens": 40, "extra_body": {"temperature": 0}}
SHORT: Any = {"max_tokens": 1, "extra_body": {"temperature": 0}}
WALK: Any = {
    "name": "walk",
    "description": "Go.",
    "input_schema": {
        "type": "object",
        "properties": {"steps": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["steps"],
        "additionalProperties": False,
    },
}
STOP: Any = {"name": "stop", "input_schema": {"type": "object", "properties": {}}}
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def client_of(found: Running, key: str = "none") -> Anthropic:
    return Anthropic(base_url=found.url, api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[Anthropic]:
    with client_of(served) as found:
        yield found


@pytest.fixture(scope="module")
def tooled_client(tooled: Running) -> Iterator[Anthropic]:
    with client_of(tooled) as found:
        yield found


def events(served: Running, fields: dict[str, Any]) -> list[Any]:
    """A stream's events, each checked as strictly as Anthropic's types allow."""
    with served.client.stream("POST", "/v1/messages?beta=true", json={**fields, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    found = []
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        event = EVENT.validate_json(data.removeprefix("data: "))
        assert name == f"event: {event.type}"
        found.append(event)
    return found


def joined(found: list[Any], kind: str, field: str) -> str:
    """What the deltas of a kind say together."""
    deltas = [event.delta for event in found if event.type == "content_block_delta"]
    return "".join(getattr(delta, field) for delta in deltas if delta.type == kind)


def test_an_answer_is_the_one_of_a_chat(client: Anthropic, served: Running) -> None:
    found = client.messages.create(model="chatty", system="Be brief.", messages=[USER], **GREEDY)
    fields = {"messages": [{"role": "system", "content": "Be brief."}, USER], **SAMPLED}
    chat = served.client.post("/v1/chat/completions", json=fields).json()
    (block,) = found.content
    assert block.type == "text"
    assert block.text == chat["choices"][0]["message"]["content"] != ""
    assert (found.role, found.type, found.model) == ("assistant", "message", "chatty")
    assert (found.stop_reason, found.stop_sequence) == ("max_tokens", None)
    usage = found.usage
    assert usage.cache_read_input_tokens is not None
    assert usage.input_tokens + usage.cache_read_input_tokens == chat["usage"]["prompt_tokens"]
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, 40)
    timings = (found.model_extra or {})["timings"]
    assert timings["draft_n_accepted"] > 0
    assert timings["cache_n"] == usage.cache_read_input_tokens
    Message.model_validate(found.model_dump(warnings=False))


def test_a_stream_says_the_same_event_by_event(served: Running, client: Anthropic) -> None:
    whole = client.messages.create(model="chatty", messages=[USER], **GREEDY)
    found = events(served, {"model": "chatty", "messages": [USER], **SAMPLED})
    kinds = [event.type for event in found]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start, end = found[0].message, found[-2]
    assert (start.content, start.stop_reason) == ([], None)
    assert start.usage.input_tokens == end.usage.input_tokens + end.usage.cache_read_input_tokens
    assert (end.delta.stop_reason, end.usage.output_tokens) == ("max_tokens", 40)
    assert len(kinds) > 20
    assert joined(found, "text_delta", "text") == whole.content[0].text


def test_the_stream_helper_of_the_client(client: Anthropic, model: Model) -> None:
    sampled: Any = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7}
    text = model.chat([USER], max_tokens=40, **sampled).text
    stop = next(text[at : at + 8] for at in range(5, 30) if text.index(text[at : at + 8]) == at)
    cut = text[: text.index(stop)]
    with client.messages.stream(
        model="chatty",
        messages=[USER],
        max_tokens=40,
        stop_sequences=["no such text", stop],
        extra_body=sampled,
    ) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == stream.get_final_text() == cut
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)


HISTORY: Any = [
    {"role": "user", "content": "Where"},
    {"role": "user", "content": [{"type": "text", "text": "to?", "cache_control": None}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "abc"},
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "text", "text": "I go", "citations": None},
            {"type": "text", "text": "."},
            {"type": "tool_use", "id": "toolu_1", "name": "walk", "input": {"steps": 2}, "caller": None},
            {"type": "tool_use", "id": "toolu_2", "name": "stop", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done", "is_error": None},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": [{"type": "text", "text": "too"}, {"type": "text", "text": "fast"}],
                "is_error": True,
            },
            {"type": "text", "text": "And now?"},
        ],
    },
    {"role": "assistant", "content": []},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9"}]},
]


def chat_history() -> list[dict[str, Any]]:
    """The same conversation as messages of a chat."""

    def call(id: str, name: str, arguments: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    return [
        {"role": "system", "content": "Be brief.\nBe kind.\n\nBe quick."},
        {"role": "user", "content": "Where\nto?"},
        {
            "role": "assistant",
            "content": "I go.",
            "reasoning_content": "hm",
            "tool_calls": [call("toolu_1", "walk", '{"steps": 2}'), call("toolu_2", "stop", "{}")],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "name": "walk", "content": "done"},
        {"role": "tool", "tool_call_id": "toolu_2", "name": "stop", "content": "Error: too\nfast"},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": ""},
        {"role": "tool", "tool_call_id": "toolu_9", "content": ""},
    ]


@pytest.mark.parametrize("form", ["hermes", "thinking"])
def test_a_history_is_the_conversation_that_it_says(
    tooled_client: Anthropic, tooled: Running, form: str
) -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1; cch=%s;"
    function = {"name": "walk", "description": "Go.", "parameters": WALK["input_schema"]}
    expected = tooled.models.loaded[form].chat_prompt(
        chat_history(),
        {"tools": [{"type": "function", "function": function}], "enable_thinking": False},
    )
    for number in range(2):
        fields: Any = {
            "model": form,
            "system": [
                {"type": "text", "text": billing % number},
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."},
            ],
            "messages": [{"role": "system", "content": "Be quick."}, *HISTORY],
            "tools": [{**WALK, "type": "custom"}],
        }
        found = tooled_client.messages.create(**fields, **SHORT)
        count = tooled_client.messages.count_tokens(**fields).input_tokens
        assert count == len(expected.ids)
        assert found.usage.cache_read_input_tokens is not None
        assert count == found.usage.input_tokens + found.usage.cache_read_input_tokens
    assert found.usage.cache_read_input_tokens > count // 2


def test_an_answer_that_is_begun_has_the_prompt_that_is_counted(tooled_client: Anthropic) -> None:
    fields: Any = {"model": "hermes", "messages": [USER, {"role": "assistant", "content": "there was"}]}
    found = tooled_client.messages.create(**fields, **SHORT).usage
    assert found.cache_read_input_tokens is not None
    count = tooled_client.messages.count_tokens(**fields).input_tokens
    assert count == found.input_tokens + found.cache_read_input_tokens


def test_all_optional_fields_may_be_null(served: Running) -> None:
    names = (
        "system stop_sequences stream temperature top_k top_p metadata service_tier thinking tool_choice "
        "tools cache_control container context_management mcp_servers output_config output_format speed"
    )
    fields = {"model": "chatty", "messages": [USER], "max_tokens": 2, **dict.fromkeys(names.split())}
    assert served.client.post("/v1/messages", json=fields).status_code == 200
    counted = {name: value for name, value in fields.items() if name != "max_tokens"}
    assert served.client.post("/v1/messages/count_tokens", json=counted).status_code == 200


@pytest.mark.fast_only("mistral")
@pytest.mark.parametrize("form", ["hermes", "mistral"])
def test_a_tool_is_used_and_its_result_goes_back(
    tooled_client: Anthropic, tooled: Running, form: str
) -> None:
    fields: Any = {
        "model": form,
        "messages": [USER],
        "tools": [WALK, STOP],
        "tool_choice": {"type": "tool", "name": "walk"},
    }
    found = tooled_client.messages.create(**fields, **GREEDY)
    (block,) = found.content
    assert (block.type, block.name, found.stop_reason) == ("tool_use", "walk", "tool_use")
    assert set(block.input) == {"steps"}
    streamed = events(tooled, {**fields, **SAMPLED})
    assert streamed[1].content_block.input == {}
    assert json.loads(joined(streamed, "input_json_delta", "partial_json")) == block.input
    with tooled_client.messages.stream(**fields, **GREEDY) as stream:
        final = stream.get_final_message()
    assert [each.input for each in final.content] == [block.input]
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
    back: Any = [USER, {"role": "assistant", "content": found.content}, {"role": "user", "content": [result]}]
    again = tooled_client.messages.create(model=form, messages=back, **SHORT)
    function = {"name": "walk", "arguments": json.dumps(block.input)}
    call = {"id": block.id, "type": "function", "function": function}
    prompt = tooled.models.loaded[form].chat_prompt(
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": block.id, "name": "walk", "content": "done"},
        ]
    )
    assert again.usage.cache_read_input_tokens is not None
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == len(prompt.ids)


def test_any_tool_but_only_one(tooled_client: Anthropic) -> None:
    found = tooled_client.messages.create(
        model="hermes",
        messages=[USER],
        tools=[WALK, STOP],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_tokens=80,
    )
    assert [block.type for block in found.content] == ["tool_use"]


def test_no_tool(tooled_client: Anthropic) -> None:
    fields: Any = {"model": "hermes", "messages": [USER]}
    without = tooled_client.messages.count_tokens(**fields)
    tools: Any = {"tools": [WALK], "tool_choice": {"type": "none"}}
    assert tooled_client.messages.count_tokens(**fields, **tools) == without
    assert tooled_client.messages.count_tokens(**fields, tools=[WALK]).input_tokens > without.input_tokens
    examples: Any = [{**WALK, "input_examples": [{"steps": 3}]}]
    assert (
        tooled_client.messages.count_tokens(**fields, tools=examples).input_tokens
        > tooled_client.messages.count_tokens(**fields, tools=[WALK]).input_tokens
    )


def test_an_input_that_is_cut_off_is_as_much_as_there_is(tooled_client: Anthropic, tooled: Running) -> None:
    fields: Any = {"model": "hermes", "messages": [USER], "tools": [WALK], "tool_choice": {"type": "any"}}
    found = tooled_client.messages.create(**fields, max_tokens=12, extra_body={"temperature": 0})
    assert found.stop_reason == "max_tokens"
    streamed = events(tooled, {**fields, "max_tokens": 12, "temperature": 0})
    assert streamed[-2].delta.stop_reason == "max_tokens"
    assert [block.input for block in found.content if block.type == "tool_use"] in ([], [{}])


def test_thinking_is_a_block_of_its_own_if_it_is_asked_for(tooled_client: Anthropic, tooled: Running) -> None:
    fields: Any = {"model": "thinking", "messages": [USER], "max_tokens": 20}
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    found = tooled_client.messages.create(**fields, thinking=thinking, extra_body={"temperature": 0})
    (block,) = found.content
    assert block.type == "thinking"
    assert block.thinking and block.signature
    assert found.usage.output_tokens_details is not None
    assert found.usage.output_tokens_details.thinking_tokens == 20
    streamed = events(tooled, {**fields, "thinking": thinking, "temperature": 0})
    assert joined(streamed, "thinking_delta", "thinking") == block.thinking
    assert joined(streamed, "signature_delta", "signature") == block.signature
    hidden = {**thinking, "display": "omitted"}
    streamed = events(tooled, {**fields, "thinking": hidden, "temperature": 0})
    assert joined(streamed, "thinking_delta", "thinking") == ""
    assert joined(streamed, "signature_delta", "signature") == block.signature
    for without in ({}, {"thinking": {"type": "disabled"}}):
        found = tooled_client.messages.create(**fields, **without, extra_body={"temperature": 0})
        assert [block.type for block in found.content] == ["text"]
    back: Any = [USER, {"role": "assistant", "content": [block.to_dict()]}, USER]
    assert tooled_client.messages.create(model="thinking", messages=back, **SHORT).usage


class Step(BaseModel):
    way: str
    far: bool


@pytest.mark.slow
def test_parse_gives_what_the_model_class_says(tooled_client: Anthropic) -> None:
    found = tooled_client.messages.parse(
        model="hermes", messages=[USER], output_format=Step, max_tokens=300, extra_body={"temperature": 0}
    )
    assert isinstance(found.parsed_output, Step)


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_a_format_is_held_to(tooled: Running, place: str) -> None:
    form: Any = {"type": "json_schema", "schema": {"type": "object"}}
    fields = {"model": "hermes", "messages": [USER], "max_tokens": 4}
    asked = {"format": form, "effort": "low"} if place == "output_config" else form
    found = tooled.client.post("/v1/messages", json={**fields, place: asked}).json()
    assert found["content"][0]["text"].lstrip().startswith("{")


def image(kind: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def user(*content: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def model_said(*content: object) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": list(content)}, USER]}


WRONG: list[tuple[dict[str, Any], str]] = [
    (user(image("image")), "messages.0.content.0 is an image"),
    (user(image("document")), "messages.0.content.0 is a document"),
    (user({"type": "search_result", "content": []}), "messages.0.content.0 is a search result"),
    (user({"type": "container_upload", "file_id": "x"}), "messages.0.content.0 is a file"),
    (user({"type": "tool_result", "tool_use_id": "a", "content": [image("image")]}), "0.content.0 is an im"),
    (user({"type": "tool_result", "content": "x"}), "messages.0.content.0.tool_use_id is missing"),
    (user({"type": "tool_use", "id": "a", "name": "b", "input": {}}), "0.content.0 is a tool_use block"),
    (user({"type": "text"}), "messages.0.content.0.text is missing"),
    (user({"text": "x"}), "messages.0.content.0.type"),
    (user(), "messages.0.content is empty"),
    (model_said({"type": "tool_result", "tool_use_id": "a"}), "messages.1.content.0 is a tool_result block"),
    (model_said({"type": "server_tool_use", "id": "a", "name": "b"}), "'server_tool_use' block"),
    (model_said({"type": "web_search_tool_result", "content": []}), "'web_search_tool_result' block"),
    (
        model_said({"type": "bash_code_execution_tool_result", "content": {"type": "x"}}),
        "'bash_code_execution_tool_result' block",
    ),
    (model_said({"type": "tool_use", "id": "a"}), "messages.1.content.0.name is missing"),
    (model_said({"type": "tool_use", "name": "a"}), "messages.1.content.0.id is missing"),
    (model_said({"type": "thinking"}), "messages.1.content.0.thinking is missing"),
    (model_said(*[{"type": "tool_use", "id": "a", "name": "b"}] * 257), "more than 256 calls"),
    (user(*[{"type": "tool_result", "tool_use_id": "a"}] * 4097), "messages.0.content"),
    (
        {"messages": [*user(*[{"type": "tool_result", "tool_use_id": "a"}] * 2100)["messages"]] * 2},
        "more than 4096 turns",
    ),
    ({"messages": []}, "messages is empty"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"system": [image("image")]}, "system.0 is an image"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop_sequences": [""]}, "stop_sequences.0"),
    ({"n": 2}, "n is not supported"),
    ({"container": "x"}, "container is not supported"),
    ({"mcp_servers": [{"name": "x"}]}, "mcp_servers is not supported"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0 is the tool 'web_search_2"),
    ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools.0 is the tool 'computer_202"),
    ({"tools": [{"name": "x"}]}, "tools.0.input_schema is missing"),
    ({"tools": [{"input_schema": {}}]}, "tools.0.name is missing"),
    ({"tools": [{**WALK, "name": "no name"}]}, "tools.0.name"),
    ({"tools": [{**WALK, "input_schema": {"type": "string"}}]}, "tools.0.input_schema must be"),
    ({"tools": [{**WALK, "defer_loading": True}]}, "tools.0.defer_loading"),
    ({"tools": [{**WALK, "allowed_callers": ["code_execution_20250825"]}]}, "tools.0.allowed_callers"),
    ({"tools": [WALK, WALK]}, "two tools have the same name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice requires a tool"),
    ({"tools": [WALK], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
    ({"tools": [WALK], "tool_choice": {"type": "tool", "name": "run"}}, "tool_choice names a tool"),
    (
        {"tools": [{**WALK, "strict": True, "input_schema": {"properties": {"a": {"type": "strange"}}}}]},
        "tools: ",
    ),
    ({"output_format": {"type": "json_schema", "schema": {"type": "strange"}}}, "output_format: "),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}},
        "output_config.format: ",
    ),
]


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_cannot_be_served_is_refused_by_name(tooled: Running, fields: dict[str, Any], said: str) -> None:
    least = {"model": "hermes", "messages": [USER], "max_tokens": 2}
    answer = tooled.client.post("/v1/messages", json={**least, **fields})
    assert answer.status_code == 400
    found = answer.json()
    assert set(found) == {"type", "error", "request_id"}
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert said in found["error"]["message"]
    assert found["request_id"] == answer.headers["request-id"]


def test_errors_are_the_clients_own(client: Anthropic, served: Running) -> None:
    with pytest.raises(NotFoundError, match="no such model") as unknown:
        client.messages.create(model="claude", messages=[USER], max_tokens=1)
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    with pytest.raises(NotFoundError, match="no such model"):
        client.messages.count_tokens(model="claude", messages=[USER])
    with pytest.raises(BadRequestError, match="prompt is too long: the prompt has"):
        client.messages.create(
            model="chatty", messages=[{"role": "user", "content": "word " * 2000}], max_tokens=1
        )
    too_large = served.client.post("/v1/messages", content=b"[" + b"0," * 300_000, headers=JSON)
    assert too_large.json()["error"]["type"] == "request_too_large"


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (QueueFullError(1, 2.0), 429, "rate_limit_error"),
        (ApiError(503, "busy"), 503, "overloaded_error"),
        (OSError("x"), 500, "api_error"),
    ],
)
def test_overload_and_failures_are_told_by_their_kind(
    client: Anthropic, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, kind: str
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(served_messages, "answer", fail)
    with pytest.raises(APIStatusError) as refused:
        client.messages.create(model="chatty", messages=[USER], max_tokens=1)
    assert (refused.value.status_code, refused.value.type) == (status, kind)
    assert isinstance(refused.value, RateLimitError) is (status == 429)


def test_a_key_may_come_in_either_header(model: Model) -> None:
    secret, other = "a key of mine, 16", "another key of 16"
    keys = KeyRing([Key("me", hashlib.sha256(secret.encode()).digest())])
    fields: Any = {"model": "chatty", "messages": [USER]}
    with running({"chatty": model}, keys) as found:
        with client_of(found, secret) as mine:
            assert mine.messages.count_tokens(**fields).input_tokens
        with Anthropic(base_url=found.url, auth_token=secret) as mine:
            assert mine.messages.count_tokens(**fields).input_tokens
        with client_of(found, other) as wrong, pytest.raises(AuthenticationError) as refused:
            wrong.messages.create(**fields, max_tokens=1)
        assert refused.value.type == "authentication_error"
        both = {"x-api-key": secret, "authorization": f"Bearer {other}"}
        assert found.client.get("/v1/models", headers=both).status_code == 401


def test_consecutive_messages_are_one_turn(tooled: Running) -> None:
    fields = {"model": "mistral", "messages": [USER, USER], "max_tokens": 1}
    found = tooled.client.post("/v1/messages", json=fields).json()["usage"]
    prompt = tooled.models.loaded["mistral"].chat_prompt([{"role": "user", "content": f"{TEXT}\n{TEXT}"}])
    assert found["input_tokens"] + found["cache_read_input_tokens"] == len(prompt.ids)
