"""Conversations with tool calls, as clients send them, are rendered as transformers renders what it wants."""

import json
from typing import Any

import pytest
from chat_templates import (
    DEEPSEEK,
    GLM,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3,
    QWEN_CODER,
    TEMPLATES,
    THINKING,
)
from transformers_templates import rendered

from anespec.runtime.text.templates.needs import TemplateNeeds, as_template_reads, template_needs
from anespec.runtime.text.templates.rendering import render_chat

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "turn",
            "description": "Turn 'left' or <right> & go on, é.",
            "parameters": {
                "type": "object",
                "properties": {"way": {"type": "string", "enum": ["left", "right"]}},
                "required": ["way"],
            },
        },
    }
]
ARGUMENTS = {"way": "left", "note": 'é "<b>" 1 < 2', "far": [1.5, None, True]}


def conversation(arguments: object, content: str | None, id: str) -> list[dict[str, Any]]:
    call = {"id": id, "type": "function", "function": {"name": "turn", "arguments": arguments}}
    return [
        {"role": "user", "content": "Where to?"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "name": "turn", "tool_call_id": id, "content": "done"},
        {"role": "assistant", "content": "I turned left."},
        {"role": "user", "content": "And now?"},
    ]


WANTED = {
    "hermes": (HERMES, ARGUMENTS, ""),
    "qwen3": (QWEN3, json.dumps(ARGUMENTS), ""),
    "thinking": (THINKING, ARGUMENTS, ""),
    "llama3": (LLAMA3, ARGUMENTS, None),
    "mistral": (MISTRAL, ARGUMENTS, None),
    "mistral-named": (MISTRAL_NAMED, json.dumps(ARGUMENTS), ""),
    "deepseek": (DEEPSEEK, json.dumps(ARGUMENTS), None),
    "qwen-coder": (QWEN_CODER, ARGUMENTS, ""),
    "glm": (GLM, ARGUMENTS, ""),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_clients_send_is_rendered_as_transformers_renders_what_the_template_wants(name: str) -> None:
    template, arguments, content = WANTED[name]
    expected = rendered(
        [conversation(arguments, content, "abcdefghi")],
        tools=TOOLS,
        chat_template=template,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )[0][0]
    sent = conversation(json.dumps(ARGUMENTS), None, "abcdefghi")
    found = render_chat(
        template,
        as_template_reads(sent, template),
        add_generation_prompt=True,
        bos="<s>",
        eos="</s>",
        variables={"tools": TOOLS},
    )
    assert found == expected
    assert "turn" in found and "left" in found


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral"])
def test_tools_and_documents_are_none_where_there_are_none(name: str) -> None:
    template = "{{ tools is defined }} {{ documents is none }}" + TEMPLATES[name]
    messages = [{"role": "user", "content": "x"}]
    expected = rendered(
        [messages], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )[0][0]
    assert render_chat(template, messages, add_generation_prompt=True, bos="<s>", eos="</s>") == expected


def test_needs_are_found_out_by_rendering() -> None:
    assert template_needs(HERMES) == TemplateNeeds(text=False, empty=True)
    assert template_needs(QWEN3) == TemplateNeeds(text=True, empty=True)
    assert template_needs(MISTRAL) == TemplateNeeds(text=False, empty=False, nine=True)
    assert template_needs(LLAMA3) == TemplateNeeds(text=False, empty=False, single=True)
    assert template_needs(DEEPSEEK) == TemplateNeeds(text=True, empty=False)
    assert template_needs("{{ raise_exception('no') }}") == TemplateNeeds()


def test_ids_of_another_make_are_made_fit_and_stay_pairs() -> None:
    _, called, result, *_ = as_template_reads(conversation("{}", None, "call_0123456789"), MISTRAL)
    (call,) = called["tool_calls"]  # type: ignore[misc]
    assert call["id"] == result["tool_call_id"]
    assert len(call["id"]) == 9


@pytest.mark.parametrize("written", ["not JSON", "[1]", "3", "[" * 100_000])
def test_arguments_that_are_no_object_stay_as_they_are(written: str) -> None:
    _, called, *_ = as_template_reads(conversation(written, None, "abcdefghi"), HERMES)
    (call,) = called["tool_calls"]  # type: ignore[misc]
    assert call["function"]["arguments"] == written


def test_reasoning_has_the_names_that_transformers_gives_it() -> None:
    template = (
        "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.content }};{% endfor %}"
    )
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "reasoning_content": "hm", "content": "y"},
    ]
    expected = rendered(
        [messages], chat_template=template, add_generation_prompt=True, bos_token="", eos_token=""
    )[0][0]
    read = as_template_reads(messages, template)
    assert render_chat(template, read, add_generation_prompt=True, bos="", eos="") == expected
