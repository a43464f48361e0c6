"""In every API a valid schema is served, and a strict one that cannot be enforced is refused by name."""

from typing import Any

import pytest
from serving import Running

ODD = {
    "type": "object",
    "title": "Seats",
    "required": ["seats"],
    "additionalProperties": False,
    "properties": {
        "seats": {
            "type": "array",
            "uniqueItems": True,
            "maxItems": 1,
            "items": {"type": "string", "format": "phone", "maxLength": 2},
        }
    },
}
MESSAGES = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "book", "parameters": ODD}


def of_format(strict: bool | None) -> dict[str, dict[str, Any]]:
    """Requests for an answer in a format, by their path."""
    named = {"name": "x", "schema": ODD, "strict": strict}
    return {
        "/v1/chat/completions": {
            "messages": MESSAGES,
            "response_format": {"type": "json_schema", "json_schema": named},
        },
        "/v1/responses": {"input": "hi", "text": {"format": {"type": "json_schema", **named}}},
    }


LENIENT = {
    "/api/chat": {"messages": MESSAGES, "format": ODD},
    "/v1/messages": {"messages": MESSAGES, "output_format": {"type": "json_schema", "schema": ODD}},
    "/v1/completions": {"prompt": "hi", "json_schema": ODD},
}


def of_tool(strict: bool | None) -> dict[str, dict[str, Any]]:
    """Requests in which a tool must be called, by their path."""
    return {
        "/v1/chat/completions": {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": FUNCTION | {"strict": strict}}],
            "tool_choice": "required",
        },
        "/v1/responses": {
            "input": "hi",
            "tools": [{"type": "function", **FUNCTION, "strict": strict}],
            "tool_choice": "required",
        },
        "/v1/messages": {
            "messages": MESSAGES,
            "tools": [{"name": "book", "input_schema": ODD, "strict": strict}],
            "tool_choice": {"type": "any"},
        },
    }


def post(tooled: Running, path: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    limit = {"/v1/responses": "max_output_tokens", "/api/chat": "options"}.get(path, "max_tokens")
    most: Any = {"num_predict": 16} if limit == "options" else 16
    body = {"model": "hermes", limit: most, **fields}
    answer = tooled.client.post(path, json=body | ({"stream": False} if "/api" in path else {}))
    found: dict[str, Any] = answer.json()
    return answer.status_code, found


@pytest.mark.parametrize("strict", [None, False])
@pytest.mark.parametrize("requests", [of_format, of_tool])
def test_a_schema_that_is_only_followed_in_part_is_served(
    tooled: Running, requests: Any, strict: bool | None
) -> None:
    for path, fields in requests(strict).items():
        status, found = post(tooled, path, fields)
        assert status == 200, (path, found)


def test_a_schema_without_strict_is_served(tooled: Running) -> None:
    for path, fields in LENIENT.items():
        status, found = post(tooled, path, fields)
        assert status == 200, (path, found)


def test_a_strict_format_is_refused_by_its_property_and_keyword(tooled: Running) -> None:
    for path, fields in of_format(True).items():
        status, found = post(tooled, path, fields)
        assert status == 400
        assert "the keyword uniqueItems of seats cannot be enforced" in found["error"]["message"]
        assert found["error"]["param"] in ("response_format.json_schema", "text.format")


def test_a_strict_tool_is_refused_by_its_name_property_and_keyword(tooled: Running) -> None:
    for path, fields in of_tool(True).items():
        status, found = post(tooled, path, fields)
        assert status == 400
        said = "(the function book): the keyword uniqueItems of seats cannot be enforced; leave it out"
        assert said in found["error"]["message"]
        assert "tools.0" in found["error"]["message"]
