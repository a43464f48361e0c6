"""Histories as clients send them back: null contents, calls without arguments, begun answers, any roles."""

from typing import Any

import pytest
from chat_templates import with_template
from chatty_model import TEMPLATE
from openai import OpenAI
from serving import Running, running

from anespec.model import Model

USER = {"role": "user", "content": "Once upon a time"}
REFUSING = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}" + TEMPLATE
)
"""As Gemma's and Mistral's first ones."""


def said(served: Running, path: str, body: dict[str, Any]) -> str:
    """The text of an answer; every request has the same settings."""
    if path.startswith("/api"):
        body = {"options": {"num_predict": 12, "temperature": 0}, "stream": False, **body}
        answer = served.client.post(path, json=body).json()
        return str(answer["message"]["content"])
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    answer = served.client.post(path, json={limit: 12, "temperature": 0, **body}).json()
    if "responses" in path:
        return "".join(part["text"] for item in answer["output"] for part in item["content"])
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
def test_an_answer_of_reasoning_alone_can_be_sent_back(served: Running, path: str) -> None:
    empty: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": None}
    thought = {"thinking" if path == "/api/chat" else "reasoning_content": "Done."}
    history = [USER, {**empty, **thought}, {"role": "user", "content": "And then?"}]
    full = [USER, {"role": "assistant", "content": ""}, {"role": "user", "content": "And then?"}]
    key = "input" if "responses" in path else "messages"
    found = said(served, path, {"model": "chatty", key: history})
    assert found == said(served, path, {"model": "chatty", key: full})
    assert found


@pytest.mark.parametrize("arguments", ["", "null", " {} "])
@pytest.mark.parametrize("form", ["qwen-coder", "glm", "hermes", "qwen3"])
def test_a_call_without_arguments_has_an_empty_object(tooled: Running, form: str, arguments: str) -> None:
    def history(arguments: str) -> list[dict[str, Any]]:
        call = {"id": "call_0", "type": "function", "function": {"name": "stop", "arguments": arguments}}
        return [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": None},
        ]

    path = "/v1/chat/completions"
    found = said(tooled, path, {"model": form, "messages": history(arguments)})
    assert found == said(tooled, path, {"model": form, "messages": history("{}")})


@pytest.fixture(scope="module")
def refusing(model: Model) -> Any:
    """Models whose templates refuse system messages, and two messages of the user in a row."""
    with running({"refusing": with_template(model, REFUSING), "chatty": model}) as found:
        yield found


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
def test_what_a_template_refuses_is_asked_in_its_way(refusing: Running, path: str) -> None:
    key = "input" if "responses" in path else "messages"
    system = {"role": "system", "content": "Tell stories."}
    history = [system, USER, {"role": "user", "content": "there was"}]
    joined = [{"role": "user", "content": "Tell stories.\nOnce upon a time\nthere was"}]
    found = said(refusing, path, {"model": "refusing", key: history})
    assert found == said(refusing, path, {"model": "chatty", key: joined})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
def test_a_begun_answer_is_continued(served: Running, model: Model, path: str) -> None:
    key = "input" if "responses" in path else "messages"
    history = [USER, {"role": "assistant", "content": "there was a"}]
    found = said(served, path, {"model": "chatty", key: history})
    prompt = "# user:\nOnce upon a time\n\n# assistant:\nthere was a"
    ids = model.tokenizer.encode(prompt, add_special=False)
    raw = model.generate(ids, max_tokens=12, temperature=0)
    assert found == raw.text


def test_fields_say_what_to_do_with_it(served: Running) -> None:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="none")
    history: Any = [USER, {"role": "assistant", "content": "there was a"}]

    def text(**fields: object) -> str | None:
        return (
            client.chat.completions.create(
                model="chatty", messages=history, max_tokens=12, temperature=0, extra_body=fields
            )
            .choices[0]
            .message.content
        )

    continued = text()
    assert text(continue_final_message=True, add_generation_prompt=False) == continued
    assert text(add_generation_prompt=False) == continued
    another = text(continue_final_message=False)
    assert another != continued
    stream = client.chat.completions.create(
        model="chatty", messages=history, max_tokens=12, temperature=0, stream=True
    )
    assert "".join(part.choices[0].delta.content or "" for part in stream if part.choices) == continued


def test_a_question_cannot_be_continued(served: Running) -> None:
    body = {"messages": [USER], "continue_final_message": True}
    answer = served.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "needs a last message of the assistant" in answer.json()["error"]["message"]
