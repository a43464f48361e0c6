"""Clients write null for what they leave to the server: a field that may be null is taken as left out."""

from typing import Any

import pytest

from anespec.runtime.server.anthropic.fields import MessagesBody, PromptBody
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.llama.completion import InfillBody, LlamaBody
from anespec.runtime.server.ollama.chat import OllamaChatBody
from anespec.runtime.server.openai.chat import ChatBody
from anespec.runtime.server.openai.completions import CompletionBody
from anespec.runtime.server.responses.respond import ResponsesBody

MESSAGES = [{"role": "user", "content": "x"}]
LEAST: list[tuple[type[Body], dict[str, Any]]] = [
    (ChatBody, {"messages": MESSAGES}),
    (CompletionBody, {"prompt": "x"}),
    (ResponsesBody, {"model": "m", "input": "x"}),
    (MessagesBody, {"messages": MESSAGES, "max_tokens": 1}),
    (PromptBody, {"messages": MESSAGES}),
    (OllamaChatBody, {"model": "m", "messages": MESSAGES}),
    (LlamaBody, {"prompt": "x"}),
    (InfillBody, {"input_prefix": "x", "input_suffix": "y"}),
]


@pytest.mark.parametrize(("kind", "least"), LEAST, ids=lambda each: getattr(each, "__name__", ""))
def test_null_is_as_if_left_out(kind: type[Body], least: dict[str, Any]) -> None:
    schema = kind.model_json_schema()
    nullable = [
        name
        for name, field in schema["properties"].items()
        if {"type": "null"} in field.get("anyOf", []) and name not in least
    ]
    without = kind.model_validate(least)
    assert nullable
    for name in nullable:
        with_null = kind.model_validate(least | {name: None})
        # Where a number is the default, null is no limit.
        assert with_null == without or getattr(without, name) is not None, name
