"""Tools and forms of answers over `/v1/chat/completions`: what is asked for comes, in every family's form."""

import contextlib
import json
from typing import Literal

import pytest
from chat_templates import SPECIAL, TEMPLATES, with_template
from openai import BadRequestError, LengthFinishReasonError, OpenAI, pydantic_function_tool
from pydantic import BaseModel
from serving import Running
from slow import slow_but

from anespec.model import Model
from anespec.runtime.server.openai.tool_fields import ToolBody, tool_use

USER = {"role": "user", "content": "Once upon a time"}
TURN = {
    "type": "function",
    "function": {
        "name": "turn",
        "parameters": {
            "type": "object",
            "properties": {
                "way": {"enum": ["left", "right"]},
                "steps": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["way", "steps"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
FORMS = ["hermes", "llama3", "mistral", "mistral-named", "qwen-coder", "glm"]


@pytest.fixture
def client(tooled: Running) -> OpenAI:
    return OpenAI(base_url=f"{tooled.url}/v1", api_key="none", max_retries=0)


def require_call_of_turn(arguments: str) -> None:
    found = json.loads(arguments)
    assert found["way"] in ("left", "right")
    assert 0 <= found["steps"] <= 99
    assert len(found) == 2


@pytest.mark.parametrize(
    "form",
    slow_but([*FORMS, "hermes-special", "mistral-named-special", "glm-special"], "glm-special"),
)
def test_a_call_that_is_required_comes_and_fits_its_schema(client: OpenAI, form: str) -> None:
    fields = {
        "model": form,
        "messages": [USER],
        "tools": [TURN],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 3,
    }
    choice = client.chat.completions.create(**fields).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls or []
    assert (call.type, call.function.name) == ("function", "turn")
    require_call_of_turn(call.function.arguments)
    parts = list(client.chat.completions.create(**fields, stream=True))
    deltas = [delta for part in parts for delta in part.choices[0].delta.tool_calls or []]
    assert (deltas[0].index, deltas[0].function.name, deltas[0].function.arguments) == (0, "turn", "")
    assert deltas[0].id
    assert all(delta.id is None and delta.function.name is None for delta in deltas[1:])
    assert "".join(delta.function.arguments for delta in deltas) == call.function.arguments
    assert len(deltas) > 3  # it is told while it comes
    assert parts[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("form", slow_but(["qwen-coder", "glm", "glm-special"], "qwen-coder"))
def test_arguments_with_tags_of_their_own_fit_their_schemas(client: OpenAI, model: Model, form: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "note": {"type": "string"},
            "tag": {"const": "1"},
            "count": {"$ref": "#/$defs/count"},
            "deep": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
        },
        "required": ["tag", "count", "deep"],
        "additionalProperties": False,
        "$defs": {"count": {"enum": [4711]}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}, STOP]
    choice = {"type": "function", "function": {"name": "f"}}
    # A tiny model never writes such a token by itself.
    special = SPECIAL["glm"] if form == "glm-special" else []
    ends = with_template(model, "", special).tokenizer.special_ids(["</arg_value>"])
    bias = {str(id): 100 for id in ends}
    whole = 0
    for seed in range(3):
        found = client.chat.completions.create(
            model=form,
            messages=[USER],
            tools=tools,
            tool_choice=choice,
            seed=seed,
            max_tokens=300,
            logit_bias=bias,
        ).choices[0]
        (call,) = found.message.tool_calls or []
        if found.finish_reason == "tool_calls":
            arguments = json.loads(call.function.arguments)
            whole += 1
            assert (arguments["tag"], arguments["count"]) == ("1", 4711)
            assert isinstance(arguments["deep"]["a"], bool)
    assert whole


@pytest.mark.parametrize("form", ["hermes", "mistral-named"])
def test_the_named_tool_is_the_one_that_is_called(client: OpenAI, form: str) -> None:
    choice = {"type": "function", "function": {"name": "stop"}}
    found = (
        client.chat.completions.create(model=form, messages=[USER], tools=[TURN, STOP], tool_choice=choice)
        .choices[0]
        .message
    )
    assert [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls or []] == [
        ("stop", {})
    ]


def test_the_stream_helper_puts_calls_together(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="hermes",
        messages=[USER],
        tools=[TURN],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=3,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = final.choices[0].message.tool_calls or []
    require_call_of_turn(call.function.arguments)


@pytest.mark.slow
def test_without_parallel_calls_there_is_one_and_with_them_there_may_be_more(
    client: OpenAI, model: Model
) -> None:
    fields = {
        "messages": [USER],
        "tools": [STOP],
        "tool_choice": "required",
        "max_tokens": 120,
        "logit_bias": {str(id): -100 for id in model.tokenizer.end_ids},
    }
    many = client.chat.completions.create(model="hermes", **fields).choices[0].message.tool_calls or []
    assert len({call.id for call in many}) == len(many) > 1
    for name, more in (("hermes", {"parallel_tool_calls": False}), ("llama3", {})):
        found = client.chat.completions.create(model=name, **fields, **more).choices[0].message
        assert len(found.tool_calls or []) == 1


@pytest.mark.slow
def test_guesses_change_no_call(tooled: Running) -> None:
    fields = {"model": "hermes", "messages": [USER], "tools": [TURN], "tool_choice": "required", "seed": 3}
    answers = [
        tooled.client.post("/v1/chat/completions", json={**fields, "max_tokens": 60, "speculate": speculate})
        for speculate in (True, False)
    ]
    calls = [answer.json()["choices"][0]["message"]["tool_calls"] for answer in answers]
    assert [call["function"] for call in calls[0]] == [call["function"] for call in calls[1]]


def test_a_call_that_is_cut_off_stays_one(client: OpenAI) -> None:
    fields = {
        "model": "hermes",
        "messages": [USER],
        "tools": [TURN],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 3,
    }
    whole = client.chat.completions.create(**fields)
    assert whole.usage is not None
    end = len("}}\n</tool_call>") + 1  # at least as many characters as tokens
    choice = client.chat.completions.create(**fields, max_tokens=whole.usage.completion_tokens - end).choices[
        0
    ]
    (call,) = choice.message.tool_calls or []
    assert choice.finish_reason == "length"
    assert call.function.name == "turn"
    with pytest.raises(ValueError):
        json.loads(call.function.arguments)


@pytest.mark.slow
def test_strict_tools_may_be_left_out_but_not_called_wrongly(client: OpenAI, model: Model) -> None:
    strict = {**TURN, "function": {**TURN["function"], "strict": True}}
    fields = {"model": "hermes-special", "messages": [USER], "max_tokens": 60, "parallel_tool_calls": False}
    said = client.chat.completions.create(**fields, tools=[strict], seed=1).choices[0].message
    assert said.content and said.tool_calls is None
    (marker,) = with_template(model, TEMPLATES["hermes"], SPECIAL["hermes"]).tokenizer.special_ids(
        ["<tool_call>"]
    )
    urged = {**fields, "logit_bias": {str(marker): 100}}
    called = client.chat.completions.create(**urged, tools=[strict]).choices[0]
    (call,) = called.message.tool_calls or []
    require_call_of_turn(call.function.arguments)
    assert (called.finish_reason, called.message.content) == ("tool_calls", None)
    # Without a grammar nothing but markers comes, which are no calls.
    free = client.chat.completions.create(**urged, tools=[TURN]).choices[0].message
    assert (free.content, free.tool_calls) == ("<tool_call>" * 60, None)


def test_only_allowed_tools_are_called(client: OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "stop"}}]}
    found = client.chat.completions.create(
        model="hermes",
        messages=[USER],
        tools=[TURN, STOP],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
        parallel_tool_calls=False,
    )
    assert [call.function.name for call in found.choices[0].message.tool_calls or []] == ["stop"]


@pytest.mark.slow
def test_a_conversation_with_calls_goes_back_through_the_template(client: OpenAI, model: Model) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "turn", "arguments": '{"way":"left","steps":2}'},
    }
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    for name, template in TEMPLATES.items():
        spoken = with_template(model, template)
        # The server knows the tool of a result by the id of the call.
        told = [*messages[:-1], {**messages[-1], "name": "turn"}]
        expected = spoken.generate(spoken.chat_prompt(told).ids, max_tokens=6)
        found = client.chat.completions.create(model=name, messages=messages, max_tokens=6, temperature=0)
        assert found.usage is not None
        assert found.usage.prompt_tokens == len(expected.prompt_ids), name
        message = found.choices[0].message
        if name == "thinking":
            assert message.reasoning_content == expected.text.strip()
        else:
            assert message.content == expected.text


class Step(BaseModel):
    way: Literal["left", "right"]
    far: bool


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hermes", "llama3"])
def test_parse_gives_what_the_model_class_says(client: OpenAI, name: str) -> None:
    for seed in range(20):
        # JSON may have any white space, and what the model samples differs from processor to processor.
        with contextlib.suppress(LengthFinishReasonError):
            found = client.chat.completions.parse(
                model=name, messages=[USER], response_format=Step, max_tokens=80, seed=seed
            )
            assert isinstance(found.choices[0].message.parsed, Step)
            assert found.choices[0].finish_reason == "stop"
            return
    pytest.fail("no answer of 20 ended")


def test_tools_may_be_model_classes(client: OpenAI) -> None:
    found = client.chat.completions.parse(
        model="llama3", messages=[USER], tools=[pydantic_function_tool(Step)], tool_choice="required", seed=1
    )
    (call,) = found.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Step)


def test_tools_need_neither_description_nor_parameters(model: Model) -> None:
    template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"
    for tool in (STOP, {"type": "function", "function": {"name": "stop", "parameters": None}}):
        use = tool_use([ToolBody.model_validate(tool)], None, True)
        told = with_template(model, template).chat_prompt([USER], {"tools": use.described})
        assert model.tokenizer.decode(told.ids) == (
            "[{'type': 'function', 'function': {'name': 'stop', 'description': '', "
            "'parameters': {'type': 'object', 'properties': {}}}}]Once upon a time"
        )


@pytest.mark.slow
def test_any_object_and_llama_servers_schema_and_grammar(tooled: Running) -> None:
    def ask(**fields: object) -> str:
        answer = tooled.client.post(
            "/v1/chat/completions",
            json={"model": "llama3", "messages": [USER], "max_tokens": 90, "seed": 2, **fields},
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    assert ask(response_format={"type": "json_object"}).lstrip().startswith("{")
    assert json.loads(ask(response_format={"type": "json_object", "schema": {"enum": [4711]}})) == 4711
    assert ask(grammar='root ::= "yes" | "no"') in ("yes", "no")
    assert ask(response_format={"type": "text"}, max_tokens=4)


def test_a_model_thinks_before_its_answer_is_held_to_anything(client: OpenAI) -> None:
    fields = {
        "messages": [USER],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"enum": [4711]}, "strict": True},
        },
        "temperature": 2.0,
        "logit_bias": {"2": -100},
    }
    found = client.chat.completions.create(model="thinking", max_tokens=40, seed=1, **fields)
    assert found.choices[0].finish_reason == "length"
    assert found.choices[0].message.reasoning_content
    assert found.choices[0].message.content == ""
    assert found.usage is not None and found.usage.completion_tokens_details is not None
    assert found.usage.completion_tokens_details.reasoning_tokens == 40
    told = client.chat.completions.create(
        model="thinking",
        max_tokens=40,
        seed=1,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        **fields,
    )
    assert (told.choices[0].message.content or "").strip() == "4711"
    assert told.usage is not None and told.usage.completion_tokens_details is not None
    assert told.usage.completion_tokens_details.reasoning_tokens == 0


def test_special_tokens_that_mark_reasoning_are_seen(tooled: Running, model: Model) -> None:
    spoken = with_template(model, TEMPLATES["thinking"], SPECIAL["thinking"])
    (end,) = spoken.tokenizer.special_ids(["</think>"])
    fields = {"model": "thinking-special", "messages": [USER], "max_tokens": 8, "temperature": 0}
    answer = tooled.client.post("/v1/chat/completions", json={**fields, "logit_bias": {str(end): 100}}).json()
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1
    assert "reasoning_content" not in answer["choices"][0]["message"]
    held = tooled.client.post(
        "/v1/chat/completions",
        json={
            **fields,
            "logit_bias": {str(end): 100},
            "response_format": {"type": "json_object", "schema": {"enum": [4711]}},
        },
    ).json()
    assert held["choices"][0]["message"]["content"].strip() == "4711"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TURN, TURN]}, "tools"),
        ({"tools": [STOP] * 200}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "no name"}}]}, "tools.0.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools.0.function.parameters",
        ),
        ({"tools": [TURN], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}},
            "response_format",
        ),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "grammar"),
        ({"chat_template_kwargs": {"x": "y" * 300_000}}, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tooled: Running, fields: dict[str, object], param: str
) -> None:
    answer = tooled.client.post(
        "/v1/chat/completions", json={"model": "hermes", "messages": [USER], "max_tokens": 4, **fields}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_schemas_that_nest_too_deeply_are_refused(tooled: Running) -> None:
    schema: dict[str, object] = {"type": "object"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"x": schema}}
    for field in (
        {"response_format": {"type": "json_object", "schema": schema}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
    ):
        answer = tooled.client.post(
            "/v1/chat/completions", json={"model": "hermes", "messages": [USER], **field}
        )
        assert answer.status_code == 400
        assert "nested deeper" in answer.json()["error"]["message"]


def test_a_template_without_tools_refuses_them(served: Running) -> None:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="chatty", messages=[USER], tools=[STOP])
    assert refused.value.param == "tools"
