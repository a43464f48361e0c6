"""Tools and thinking over Ollama's API, as its own client sees them."""

import json

import pytest
from ollama import Client, ResponseError
from serving import Running

from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.engine.requests import FinishReason
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.server.answers.reading import AnswerReader
from anespec.runtime.server.ollama.answers import ChatLine, chat_line
from anespec.runtime.server.ollama.writer import Clock, LineWriter
from anespec.runtime.server.tools.call_reader import CallReader
from anespec.runtime.server.tools.families import Hermes

USER = {"role": "user", "content": "Once upon a time"}
STEPS = {"type": "object", "properties": {"steps": {"enum": [3]}}, "required": ["steps"]}
WALK = {"type": "function", "function": {"name": "walk", "description": "Go.", "parameters": STEPS}}
A_CALL = {
    "type": "object",
    "properties": {"name": {"enum": ["walk"]}, "parameters": {**STEPS, "additionalProperties": False}},
    "required": ["name", "parameters"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": " ?"},
}


@pytest.fixture
def client(tooled: Running) -> Client:
    return Client(host=tooled.url)


@pytest.mark.slow
def test_what_the_model_writes_as_a_call_is_told_as_one(client: Client) -> None:
    fields = {
        "model": "llama3",
        "messages": [USER],
        "tools": [WALK],
        "format": A_CALL,
        "options": {"temperature": 0, "num_predict": 300, "stop": [";"]},
    }
    found = client.chat(**fields)
    (call,) = found.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("walk", {"steps": 3})
    assert (found.message.content, found.done_reason) == ("", "stop")
    lines = list(client.chat(**fields, stream=True))
    assert [call for line in lines for call in line.message.tool_calls or []] == [call]
    back = client.chat(
        "llama3", [USER, found.message, {"role": "tool", "tool_name": "walk", "content": "done"}]
    )
    assert back.message.content


def test_a_conversation_with_calls_goes_back_through_the_template(client: Client, tooled: Running) -> None:
    call = {"function": {"name": "walk", "arguments": {"steps": 3}}}
    result = {"role": "tool", "tool_name": "walk", "content": "done"}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    by_openai = {"id": "call_0", "function": {"name": "walk", "arguments": '{"steps": 3}'}}
    for name, model in tooled.models.loaded.items():
        prompt = model.chat_prompt(
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [{**by_openai, "type": "function"}]},
                {"role": "tool", "name": "walk", "tool_call_id": "call_0", "content": "done"},
            ]
        )
        found = client.chat(name, [USER, called, result], options={"num_predict": 1})
        assert found.prompt_eval_count == len(prompt.ids), name


def test_results_go_to_the_calls_that_they_are_of(tooled: Running) -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("walk", "stop", "walk")]
    results = [{"role": "tool", "tool_name": name, "content": name} for name in ("stop", "walk", "walk")]
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    model = tooled.models.loaded["mistral"]
    ids = [f"call_{number}" for number in range(3)]
    expected = model.chat_prompt(
        [
            USER,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
                    for id, name in zip(ids, ("walk", "stop", "walk"), strict=True)
                ],
            },
            *(
                {"role": "tool", "tool_call_id": id, "name": name, "content": name}
                for id, name in zip(("call_1", "call_0", "call_2"), ("stop", "walk", "walk"), strict=True)
            ),
        ]
    )
    body = {"model": "mistral", "messages": messages, "stream": False, "options": {"num_predict": 1}}
    answer = tooled.client.post("/api/chat", json=body).json()
    assert answer["prompt_eval_count"] == len(expected.ids)


def test_thinking_is_apart_and_can_be_left_out(client: Client) -> None:
    options = {"temperature": 0, "num_predict": 20}
    thought = client.chat("thinking", [USER], options=options)
    assert thought.message.thinking
    assert thought.message.content == ""
    lines = list(client.chat("thinking", [USER], options=options, think=True, stream=True))
    assert "".join(line.message.thinking or "" for line in lines) == thought.message.thinking
    generated = client.generate("thinking", USER["content"], options=options)
    assert (generated.thinking, generated.response) == (thought.message.thinking, "")
    told = client.chat("thinking", [USER], options=options, think=False)
    assert told.message.content
    assert told.message.thinking is None


def test_what_a_model_can_is_told(client: Client) -> None:
    assert client.show("hermes").capabilities == ["completion", "tools"]
    assert client.show("thinking").capabilities == ["completion", "tools", "thinking"]


def test_a_template_without_tools_refuses_them(served: Running) -> None:
    with pytest.raises(ResponseError, match="does not support tools") as refused:
        Client(host=served.url).chat("chatty", [USER], tools=[WALK])
    assert refused.value.status_code == 400


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [{"type": "function", "function": {"name": "no name"}}]}, "tools.0.function.name"),
        ({"tools": [WALK, WALK]}, "the same name"),
        ({"format": {"type": "strange"}}, "schema is not valid"),
        ({"think": "much"}, "think"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(
    tooled: Running, fields: dict[str, object], reason: str
) -> None:
    answer = tooled.client.post("/api/chat", json={"model": "hermes", "messages": [USER], **fields})
    assert answer.status_code == 400
    assert reason in answer.json()["error"]


CALL = '<tool_call>{"name": "f", "arguments": %s}</tool_call>'


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (CALL % '{"x": 1.5}' + CALL % "{}", [{"x": 1.5}, {}]),
        (CALL % '{"x": 1e999}', []),
        (CALL % ('{"x": ' + "9" * 5000 + "}"), []),
    ],
)
def test_calls_are_told_at_once_and_only_such_as_json_can_tell(text: str, arguments: list[object]) -> None:
    writer = LineWriter("m", chat_line, Clock.start(), AnswerReader("", CallReader(Hermes())), None)
    summary = Summary((1,), (), text, FinishReason.STOP, RequestStats(prompt_tokens=1))
    written = [line for part in text for line in writer.chunk(0, Chunk(part))] + [*writer.end([summary])]
    told = [call for line in written for call in json.loads(line)["message"].get("tool_calls", [])]
    assert [call["function"]["arguments"] for call in told] == arguments
    assert [call["function"]["index"] for call in told] == list(range(len(arguments)))
    whole = LineWriter("m", chat_line, Clock.start(), AnswerReader("", CallReader(Hermes())), None)
    found = whole.whole([summary])
    assert isinstance(found, ChatLine)
    assert [call.function.arguments for call in found.message.tool_calls] == arguments
