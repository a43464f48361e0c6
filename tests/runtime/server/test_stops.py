"""A stop string ends an answer, and not the reasoning before it."""

from typing import Any

import pytest
from serving import Running

SAID = {"messages": [{"role": "user", "content": "hi"}], "temperature": 2.0, "seed": 1}


def ask(tooled: Running, path: str, **fields: Any) -> dict[str, Any]:
    answer = tooled.client.post(path, json={"max_tokens": 40, **SAID, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_in_the_reasoning_ends_nothing(tooled: Running, stream: bool) -> None:
    fields = {"model": "thinking", "response_format": {"type": "json_object"}}
    path = "/v1/chat/completions"
    thought = ask(tooled, path, **fields)["choices"][0]["message"]["reasoning_content"]
    stop = thought[3:5]
    if stream:
        body = {"max_tokens": 40, **SAID, **fields, "stop": stop, "stream": True}
        assert '"finish_reason":"length"' in tooled.client.post(path, json=body).text
        return
    (choice,) = ask(tooled, path, **fields, stop=stop)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"] == thought


def test_a_stop_string_ends_an_answer_without_reasoning(tooled: Running) -> None:
    fields = {"model": "hermes"}
    said = ask(tooled, "/v1/chat/completions", **fields)["choices"][0]["message"]["content"]
    stop = said[3:6]
    (choice,) = ask(tooled, "/v1/chat/completions", **fields, stop=stop)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == said[: said.index(stop)]
