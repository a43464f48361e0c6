"""`/v1/responses`, as OpenAI's own client sees it."""

import json
from collections.abc import Iterable
from typing import Literal

import pytest
from chat_templates import SPECIAL, TEMPLATES, with_template
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from serving import Running

from anespec.model import Model
from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.engine.requests import FinishReason
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.options import GenerationOptions
from anespec.runtime.server.answers.reading import Reading
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import as_json
from anespec.runtime.server.responses.respond import ResponsesBody, begun
from anespec.runtime.server.responses.writer import ResponseWriter
from anespec.runtime.server.tools.families import Hermes

TEXT = "Once upon a time"
USER = {"role": "user", "content": TEXT}
BRIEF = {"role": "system", "content": "Be brief."}
WALK = {
    "type": "function",
    "name": "walk",
    "description": "Go.",
    "parameters": {
        "type": "object",
        "properties": {"steps": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["steps"],
        "additionalProperties": False,
    },
    "strict": True,
}
STOP = {"type": "function", "name": "stop", "parameters": None, "strict": False}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def client(served: Running) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def tooled_client(tooled: Running) -> OpenAI:
    return OpenAI(base_url=f"{tooled.url}/v1", api_key="none", max_retries=0)


def events(served: Running, fields: dict[str, object]) -> list[ResponseStreamEvent]:
    """A stream's events, each checked as strictly as OpenAI's types allow, in their places."""
    with served.client.stream("POST", "/v1/responses", json={**fields, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    found = []
    for number, (name, data) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        event = EVENT.validate_json(data.removeprefix("data: "))
        assert name == f"event: {event.type}"
        assert event.sequence_number == number
        found.append(event)
    return found


@pytest.mark.slow
def test_the_answer_is_the_one_that_the_library_gives(client: OpenAI, model: Model) -> None:
    expected = model.chat([BRIEF, USER], max_tokens=40, temperature=0.8, seed=7)
    found = client.responses.create(
        model="chatty",
        input=TEXT,
        instructions="Be brief.",
        max_output_tokens=40,
        temperature=0.8,
        metadata={"whose": "mine"},
        extra_body={"seed": 7},
    )
    assert found.output_text == expected.text
    assert (found.status, found.store, found.temperature) == ("incomplete", False, 0.8)
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.metadata == {"whose": "mine"}
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (len(expected.prompt_ids), 40)
    assert found.usage.output_tokens_details.reasoning_tokens == 0
    assert [item.type for item in found.output] == ["message"]
    Response.model_validate(found.model_dump(warnings=False))


def test_a_stream_says_the_same_event_by_event(served: Running, client: OpenAI) -> None:
    fields = {"model": "chatty", "input": [USER], "max_output_tokens": 40, "temperature": 0}
    whole = client.responses.create(**fields)
    found = events(served, fields)
    kinds = [event.type for event in found]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert len(kinds) > 20
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in found if event.type == "response.output_text.delta")
    assert text == whole.output_text == found[-4].text
    assert found[0].response.output == []
    assert found[-1].response.output_text == text
    assert found[-1].response.usage is not None
    assert found[-1].response.usage.output_tokens == 40


@pytest.mark.slow
def test_the_stream_helper_of_the_client(client: OpenAI, model: Model) -> None:
    text = model.chat([USER], max_tokens=40).text
    with client.responses.stream(
        model="chatty", input=TEXT, temperature=0, extra_body={"stop": text[20:24]}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output_text == text[: text.index(text[20:24])]
    assert final.status == "completed"
    assert final.incomplete_details is None


def test_an_input_of_items_is_the_conversation_that_it_says(client: OpenAI, model: Model) -> None:
    expected = model.chat(
        [
            {"role": "system", "content": "Be brief.\n\nBe kind."},
            USER,
            {"role": "assistant", "content": "there was"},
            {"role": "user", "content": "a\nb"},
        ],
        max_tokens=8,
    )
    found = client.responses.create(
        model="chatty",
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Be kind."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "there was", "annotations": []}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": text} for text in "ab"]},
        ],
        max_output_tokens=8,
        temperature=0,
    )
    assert found.usage is not None
    assert found.usage.input_tokens == len(expected.prompt_ids)
    assert found.output_text == expected.text


class Step(BaseModel):
    way: Literal["left", "right"]
    far: bool


@pytest.mark.slow
def test_parse_gives_what_the_model_class_says(tooled_client: OpenAI) -> None:
    found = tooled_client.responses.parse(
        model="hermes", input=TEXT, text_format=Step, temperature=0, max_output_tokens=300
    )
    assert isinstance(found.output_parsed, Step)
    assert found.text is not None and found.text.format is not None
    assert found.text.format.type == "json_schema"
    assert found.text.format.name == "Step"


def test_any_object(tooled_client: OpenAI) -> None:
    found = tooled_client.responses.create(
        model="hermes", input=TEXT, text={"format": {"type": "json_object"}}, max_output_tokens=4
    )
    assert found.output_text.lstrip().startswith("{")


@pytest.mark.fast_only("mistral")
@pytest.mark.parametrize("form", ["hermes", "mistral"])
def test_a_function_is_called_and_its_output_goes_back(
    tooled_client: OpenAI, tooled: Running, form: str
) -> None:
    fields = {
        "model": form,
        "input": TEXT,
        "tools": [WALK, STOP],
        "tool_choice": {"type": "function", "name": "walk"},
        "temperature": 0,
    }
    found = tooled_client.responses.create(**fields)
    (call,) = found.output
    assert (call.type, call.name, call.status, found.status) == (
        "function_call",
        "walk",
        "completed",
        "completed",
    )
    assert set(json.loads(call.arguments)) == {"steps"}
    assert [tool.name for tool in found.tools] == ["walk", "stop"]
    assert found.tool_choice.model_dump() == fields["tool_choice"]
    streamed = events(tooled, fields)
    assert [event.type for event in streamed if "delta" not in event.type] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in streamed if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 2
    assert "".join(deltas) == call.arguments == streamed[-3].arguments
    back = [
        USER,
        call.model_dump(exclude_unset=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "done"},
    ]
    spoken = tooled.models.loaded[form]
    function = {"name": "walk", "arguments": call.arguments}
    prompt = spoken.chat_prompt(
        [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call.call_id, "name": "walk", "content": "done"},
        ]
    )
    again = tooled_client.responses.create(model=form, input=back, max_output_tokens=1)
    assert again.usage is not None
    assert again.usage.input_tokens == len(prompt.ids)


@pytest.mark.slow
def test_the_stream_helper_puts_calls_together(tooled_client: OpenAI) -> None:
    with tooled_client.responses.stream(
        model="hermes",
        input=TEXT,
        tools=[WALK],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    ) as stream:
        for _ in stream:
            pass
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"steps"}


def test_only_allowed_tools_are_called(tooled_client: OpenAI) -> None:
    found = tooled_client.responses.create(
        model="hermes",
        input=TEXT,
        tools=[WALK, STOP],
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "stop"}],
        },
        parallel_tool_calls=False,
    )
    assert [item.name for item in found.output] == ["stop"]


def test_reasoning_is_an_item_of_its_own_and_goes_back(tooled_client: OpenAI, tooled: Running) -> None:
    fields = {"model": "thinking", "input": TEXT, "temperature": 0, "max_output_tokens": 20}
    found = tooled_client.responses.create(**fields)
    (item,) = found.output
    assert (item.type, item.status) == ("reasoning", "incomplete")
    assert found.usage is not None and found.usage.output_tokens_details.reasoning_tokens == 20
    streamed = events(tooled, fields)
    kinds = [event.type for event in streamed if "delta" not in event.type]
    assert kinds[3:-1] == [
        "response.content_part.added",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    text = "".join(event.delta for event in streamed if event.type == "response.reasoning_text.delta")
    assert item.content is not None
    assert text == item.content[0].text != ""
    left_out = tooled_client.responses.create(**fields, reasoning={"effort": "none"})
    assert [item.type for item in left_out.output] == ["message"]
    back = [USER, item.model_dump(exclude_unset=True), {"role": "assistant", "content": "yes"}, USER]
    assert tooled_client.responses.create(model="thinking", input=back, max_output_tokens=1).usage


def test_nothing_is_kept(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="responses are not stored"):
        client.responses.retrieve("resp_1")
    with pytest.raises(NotFoundError, match="responses are not stored"):
        client.responses.delete("resp_1")


IMAGE = {"type": "input_image", "image_url": "data:,"}
DEEP: dict[str, object] = {"type": "object", "properties": {}}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"x": DEEP}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": TEXT, "store": True}, "store"),
        ({"input": TEXT, "background": True}, "background"),
        ({"input": TEXT, "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": TEXT, "conversation": "conv_1"}, "conversation"),
        ({"input": TEXT, "prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": TEXT, "top_logprobs": 2}, "top_logprobs"),
        ({"input": TEXT, "include": ["message.output_text.logprobs"]}, "include"),
        ({"input": TEXT, "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": TEXT, "tools": [{"type": "web_search"}]}, "tools.0"),
        ({"input": TEXT, "tools": [{"type": "mcp", "server_label": "x"}]}, "tools.0"),
        ({"input": TEXT, "tools": [{"type": "function"}]}, "tools.0.name"),
        ({"input": TEXT, "tools": [{"type": "function", "name": "no name"}]}, "tools.0.name"),
        ({"input": TEXT, "tools": [{**WALK, "parameters": {"type": "string"}}]}, "tools.0.parameters"),
        ({"input": TEXT, "tools": [WALK, WALK]}, "tools"),
        ({"input": TEXT, "tools": [WALK], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": TEXT, "tools": [WALK], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"input": TEXT, "tools": [WALK], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"input": TEXT, "tool_choice": "required"}, "tool_choice"),
        ({"input": TEXT, "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        (
            {
                "input": TEXT,
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "strange"}}},
            },
            "text.format",
        ),
        (
            {"input": TEXT, "text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP}}},
            "text.format",
        ),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "pirate", "content": "x"}]}, "input.0.role"),
        ({"input": [{"content": "x"}]}, "input.0.role"),
        ({"input": [USER, {"type": "function_call", "call_id": "1"}]}, "input.1.name"),
        ({"input": [USER, {"type": "function_call", "name": "f"}]}, "input.1.call_id"),
        ({"input": [USER, {"type": "function_call_output", "call_id": "1"}]}, "input.1.output"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": [IMAGE]}]},
            "input.0.output.0",
        ),
        (
            {"input": [USER, *[{"type": "function_call", "name": "f", "call_id": "1"}] * 257]},
            "input.257",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"input": TEXT, "model": "gpt-5"}, "model"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tooled: Running, fields: dict[str, object], param: str
) -> None:
    answer = tooled.client.post("/v1/responses", json={"model": "hermes", **fields})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


@pytest.mark.fast_only("True-True")
@pytest.mark.parametrize(("said", "strict"), [(None, True), (True, True), (False, False)])
def test_a_function_is_strict_unless_it_says_otherwise(
    tooled: Running, model: Model, said: bool | None, strict: bool
) -> None:
    spoken = with_template(model, TEMPLATES["hermes"], SPECIAL["hermes"])
    (marker,) = spoken.tokenizer.special_ids(["<tool_call>"])
    fields = {
        "model": "hermes-special",
        "input": TEXT,
        "tools": [{**WALK, "strict": said}],
        "parallel_tool_calls": False,
        "max_output_tokens": 80,
        "logit_bias": {str(marker): 100},
        "seed": 1,
    }
    found = tooled.client.post("/v1/responses", json=fields).json()
    assert found["tools"][0]["strict"] is strict
    assert (found["output"][0]["type"] == "function_call") is strict


@pytest.mark.parametrize(("said", "status"), [(None, 200), (True, 400)])
def test_a_schema_that_cannot_be_held_to_is_a_hint_unless_it_is_to_be_strict(
    tooled: Running, said: bool | None, status: int
) -> None:
    tool = {
        **WALK,
        "parameters": {"type": "object", "properties": {"a": {"type": "strange"}}},
        "strict": said,
    }
    fields = {"model": "hermes", "input": TEXT, "tools": [tool], "max_output_tokens": 2}
    found = tooled.client.post("/v1/responses", json=fields)
    assert found.status_code == status
    if status == 200:
        assert found.json()["tools"][0]["strict"] is False
    else:
        assert found.json()["error"]["param"] == "tools"


def test_a_prompt_that_does_not_fit_is_told_by_its_code(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model="chatty", input="word " * 2000)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def writer(model: Model) -> ResponseWriter:
    """One of an answer that may think, speak and call."""
    body = ResponsesBody.model_validate_json('{"input": "x"}')
    return ResponseWriter(begun(body, "m", True, GenerationOptions()), Reading(model.tokenizer, "", Hermes()))


def read(written: Iterable[bytes]) -> list[ResponseStreamEvent]:
    return [EVENT.validate_json(part.decode().split("data: ")[1]) for part in written]


def test_an_answer_may_have_items_of_all_kinds_in_any_order(model: Model) -> None:
    text = f"<think>hm</think>\n\nyes{CALL}{CALL}no"
    summary = Summary((1,), (), text, FinishReason.STOP, RequestStats(prompt_tokens=1))
    streaming, whole = writer(model), writer(model).whole([summary])
    written = [*streaming.begin()]
    for character in text:
        written += streaming.chunk(0, Chunk(character))
    found = read([*written, *streaming.end([summary])])
    final = found[-1].response
    assert [item.type for item in final.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "message",
    ]
    assert {item.status for item in final.output} == {"completed"}
    assert final.output_text == "yesno"
    at_once = Response.model_validate_json(as_json(whole))
    kept = {"id", "call_id"}
    assert [item.model_dump(exclude=kept) for item in at_once.output] == [
        item.model_dump(exclude=kept) for item in final.output
    ]
    done = [event for event in found if event.type == "response.output_item.done"]
    assert [event.item for event in done] == final.output
    assert [event.output_index for event in done] == [0, 1, 2, 3, 4]


def test_a_stream_that_fails_says_so_and_keeps_what_it_has(model: Model) -> None:
    streaming = writer(model)
    written = [*streaming.begin(), *streaming.chunk(0, Chunk("yes")), *streaming.failed(ApiError(500, "oh"))]
    found = read(written)
    assert [event.type for event in found[-3:]] == [
        "response.content_part.done",
        "response.output_item.done",
        "response.failed",
    ]
    final = found[-1].response
    assert (final.status, final.output_text) == ("failed", "yes")
    assert final.error is not None and (final.error.code, final.error.message) == ("server_error", "oh")


def test_an_answer_of_nothing_is_an_empty_message(model: Model) -> None:
    summary = Summary((1,), (), "", FinishReason.STOP, RequestStats(prompt_tokens=1))
    (item,) = writer(model).whole([summary]).output
    assert item.type == "message"
    assert item.content[0].text == ""
