"""Requests with one field at its maximum, or a little above: a name, a path and a body each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
SHORT = "def area(w, h):\n"
WORDS = "def read_lines(path, encoding): return open(path, encoding=encoding).read().splitlines()\n"


@dataclass(frozen=True)
class LargeRequest:
    """A request; `name` is its large field. `needs_no_key` marks a request without a key."""

    name: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    needs_no_key: bool = False


def ordinary(tokens: int) -> LargeRequest:
    """Return a request without a large field, with which the large ones are compared."""
    return _completion("ordinary requests", max_tokens=tokens)


def large_requests(tokens: int) -> Sequence[LargeRequest]:
    """Return all large requests; those that generate do so for `tokens` tokens, like an ordinary one."""
    return (*_sampling(tokens), *_prompts(tokens), *_chats(tokens), *_others(tokens))


def _request(name: str, path: str, body: object) -> LargeRequest:
    return LargeRequest(name, path, json.dumps(body, separators=(",", ":")).encode())


def _completion(name: str, **fields: Any) -> LargeRequest:
    return _request(name, COMPLETIONS, {"prompt": SHORT, "temperature": 0, "ignore_eos": True, **fields})


def _chat(name: str, **fields: Any) -> LargeRequest:
    usual = {"messages": [{"role": "user", "content": SHORT}], "ignore_eos": True, "temperature": 0}
    return _request(name, CHAT, {**usual, **fields})


def _biases(count: int) -> dict[str, float]:
    return {str(token): -1.0 for token in range(count)}


def _schema(properties: int, pattern: str | None = None) -> dict[str, Any]:
    each = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    names = {f"property_{number}": each for number in range(properties)}
    return {"type": "object", "properties": names, "required": list(names), "additionalProperties": False}


def _tools(count: int, properties: int, strict: bool) -> list[dict[str, Any]]:
    function = {"description": "Do it.", "parameters": _schema(properties), "strict": strict}
    return [
        {"type": "function", "function": {"name": f"tool_{number}", **function}} for number in range(count)
    ]


def _sampling(tokens: int) -> Sequence[LargeRequest]:
    long = {"max_tokens": tokens}
    stops = ["x" * 1019 + f"{number:05}" for number in range(256)]
    near = ["    " * 200 + f"{number:05}" for number in range(256)]
    return (
        _completion("max_tokens: the whole context", max_tokens=-1),
        _completion("n: 64", n=64, **long),
        _completion("n: 64, max_tokens: the whole context", n=64, max_tokens=-1),
        _completion("n: 128, more than fit", n=128, **long),
        _completion("logit_bias: 2,000, n: 64", n=64, logit_bias=_biases(2000), **long),
        _completion("logit_bias: 2,000, n: 16", n=16, logit_bias=_biases(2000), **long),
        _completion("logit_bias: 4,096, no such tokens", n=64, logit_bias=_biases(4096), **long),
        _completion("stop: 256 of 1,024, n: 64", n=64, stop=stops, **long),
        _completion("stop: 256 that nearly come, n: 16", n=16, stop=near, **long),
        _completion("logprobs: 20, n: 16", n=16, logprobs=20, **long),
        _completion("logprobs: 20, n: 16, a stream", n=16, logprobs=20, stream=True, **long),
        _completion(
            "penalties, typical_p and all, n: 16",
            n=16,
            temperature=2,
            typical_p=0.99,
            top_p=0.99,
            min_p=0.001,
            repeat_penalty=1.1,
            presence_penalty=0.1,
            frequency_penalty=0.1,
            **long,
        ),
    )


def _prompts(tokens: int) -> Sequence[LargeRequest]:
    long = {"max_tokens": tokens}
    text = WORDS * 25
    return (
        _completion("prompt: 600 tokens", prompt=text, **long),
        _completion("prompt: 128 texts", prompt=[f"{number} {text}" for number in range(128)], max_tokens=1),
        _completion("prompt: 64 texts", prompt=[f"{number} {text}" for number in range(64)], max_tokens=1),
        _completion("prompt: a text that is too long", prompt="x" * 8_000_000, **long),
        _completion("prompt: 1,000 token ids, n: 64", prompt=[100] * 1000, n=64, max_tokens=1),
        _completion("prompt: 250,000 token ids", prompt=[100] * 250_000, **long),
        _completion("prompt: 60 lists of 4,000 token ids", prompt=[[100] * 4000] * 60, **long),
        _completion("echo of a long prompt, n: 64", prompt=text, echo=True, n=64, max_tokens=1),
        _completion("suffix", suffix="x" * 1_000_000, **long),
        _completion(
            "reference: 262,144 characters, n: 16", n=16, reference=(WORDS * 3000)[: 1 << 18], **long
        ),
    )


def _chats(tokens: int) -> Sequence[LargeRequest]:
    long = {"max_tokens": tokens}
    message = {"role": "user", "content": "a"}
    called = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    rule = " | ".join(f'"{number:x}{"y" * 40}"' for number in range(5000))
    form = {"type": "json_schema"}
    return (
        _chat("messages: 4,096", messages=[message] * 4096, **long),
        _chat(
            "messages: one of 4,000,000 characters",
            messages=[{"role": "user", "content": "a " * 2_000_000}],
            **long,
        ),
        _chat(
            "messages: 4,096 parts",
            messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 4096}],
            **long,
        ),
        _chat(
            "messages: 10,000 tool calls",
            messages=[message, *[{"role": "assistant", "tool_calls": [called] * 250}] * 40],
            **long,
        ),
        _chat("tools: 128", tools=_tools(128, 20, False), **long),
        _chat("tools: 128, strict", tools=_tools(128, 20, True), tool_choice="required", **long),
        _chat(
            "tools: one of 5,000 properties, strict",
            tools=_tools(1, 5000, True),
            tool_choice="required",
            **long,
        ),
        _chat(
            "json_schema: 6,000 properties",
            response_format={**form, "json_schema": {"schema": _schema(6000)}},
            **long,
        ),
        _chat(
            "json_schema: 100 patterns",
            response_format={
                **form,
                "json_schema": {"schema": _schema(100, "^(a|b|c){1,500}[0-9a-f]{100}$")},
            },
            **long,
        ),
        _chat(
            "json_schema, n: 64",
            n=64,
            response_format={**form, "json_schema": {"schema": _schema(500)}},
            **long,
        ),
        _chat("grammar: 250,000 characters", grammar=f"root ::= {rule}", **long),
        _chat("grammar: ambiguous", grammar='root ::= s\ns ::= s s s | s s | "-" | "--"', **long),
        _chat("logit_bias: 2,000, n: 64, in a chat", n=64, logit_bias=_biases(2000), **long),
        _chat("top_logprobs: 20, n: 16, a stream", n=16, logprobs=True, top_logprobs=20, stream=True, **long),
        _chat(
            "prediction: 262,144 characters",
            prediction={"type": "content", "content": (WORDS * 3000)[: 1 << 18]},
            **long,
        ),
        _chat("documents: 1,024", documents=[{"title": "a", "text": "b" * 150}] * 1024, **long),
        _chat(
            "chat_template_kwargs: 64",
            chat_template_kwargs={f"name_{n}": ["x" * 100] * 30 for n in range(64)},
            **long,
        ),
        _chat("metadata: 10,000", metadata={f"name_{n}": "x" * 100 for n in range(10_000)}, **long),
    )


def _others(tokens: int) -> Sequence[LargeRequest]:
    text, megabyte = WORDS * 25, (WORDS * 12_000)[: 1 << 20]
    item = {"role": "user", "content": "a"}
    long = {"n_predict": tokens, "ignore_eos": True}
    ollama = {"model": "model", "stream": False, "options": {"num_predict": tokens}}
    return (
        _request("/tokenize: 1 MB", "/tokenize", {"content": megabyte}),
        _request("/tokenize: 1 MB of one letter", "/tokenize", {"content": "a" * (1 << 20)}),
        _request("/tokenize: 1 MB with pieces", "/tokenize", {"content": megabyte, "with_pieces": True}),
        _request("/detokenize: 250,000", "/detokenize", {"tokens": [100] * 250_000}),
        _request(
            "/completion: json_schema", "/completion", {"prompt": SHORT, "json_schema": _schema(6000), **long}
        ),
        _request(
            "/completion: logit_bias", "/completion", {"prompt": SHORT, "logit_bias": _biases(2000), **long}
        ),
        _request(
            "/infill: 1,024 files",
            "/infill",
            {
                "input_prefix": text,
                "input_suffix": text,
                "input_extra": [{"filename": "a.py", "text": text * 6}] * 1000,
                **long,
            },
        ),
        _request("responses: 4,096 items", RESPONSES, {"input": [item] * 4096, "max_output_tokens": tokens}),
        _request(
            "responses: instructions, metadata",
            RESPONSES,
            {
                "input": SHORT,
                "max_output_tokens": tokens,
                "instructions": text,
                "metadata": {f"name_{n}": "x" * 500_000 for n in range(16)},
            },
        ),
        _request(
            "responses: tools: 128",
            RESPONSES,
            {
                "input": SHORT,
                "max_output_tokens": tokens,
                "tools": [
                    {"type": "function", "name": f"tool_{n}", "parameters": _schema(20)} for n in range(128)
                ],
            },
        ),
        _request(
            "/v1/messages: 4,096 blocks",
            "/v1/messages",
            {"messages": [{**item, "content": [{"type": "text", "text": "a"}] * 4096}], "max_tokens": tokens},
        ),
        _request("/api/chat: 4,096 messages", "/api/chat", {"messages": [item] * 4096, **ollama}),
        _request("/api/chat: format", "/api/chat", {"messages": [item], "format": _schema(6000), **ollama}),
        _request("/api/generate: prompt", "/api/generate", {"prompt": text, **ollama}),
        _request(
            "/api/generate: context", "/api/generate", {"prompt": "a", "context": [1] * 250_000, **ollama}
        ),
        _request(
            "unknown: 15 MB of text",
            COMPLETIONS,
            {"prompt": SHORT, "max_tokens": 1, "user": "x" * 15_000_000},
        ),
        _request(
            "unknown: 260,000 values", COMPLETIONS, {"prompt": SHORT, "max_tokens": 1, "user": [1] * 260_000}
        ),
        _request(
            "unknown: 260,000 lists", COMPLETIONS, {"prompt": SHORT, "max_tokens": 1, "user": [[]] * 130_000}
        ),
        LargeRequest(
            "headers: 30 KB", COMPLETIONS, b'{"prompt":"a","max_tokens":1}', {"x-filler": "x" * 30_000}
        ),
        *(
            LargeRequest(f"GET {path} without a key", path, b"", method="GET", needs_no_key=True)
            for path in ("/livez", "/openapi.json", "/v1/models")
        ),
    )
