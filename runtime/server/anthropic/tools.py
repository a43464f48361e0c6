"""Convert a request's tools, and the choice among them, to those of a chat."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.openai import tool_fields
from anespec.runtime.server.openai.tool_fields import ToolBody, ToolUse, tool_use
from anespec.system.formatting import quoted

MOST_EXAMPLES = 64


class Tool(Body):
    """A tool that the client runs; `input_schema` is the JSON schema of its input.

    Tools of other types, which Anthropic runs or has taught its models, are refused.
    """

    type: str | None = None
    name: str | None = Field(default=None, pattern=tool_fields.NAME)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = Field(default=None, max_length=MOST_EXAMPLES)
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class ToolChoice(Body):
    """Whether tools may be called (`auto`), must be (`any`, or the one `tool` of that name), or not
    (`none`)."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def use_of(tools: Sequence[Tool], choice: ToolChoice | None) -> ToolUse:
    """Return a request's tools and the choice among them. Raises ApiError if one is not possible."""
    found = [_tool(tool, f"tools.{number}") for number, tool in enumerate(tools)]
    parallel = choice is None or not choice.disable_parallel_tool_use
    try:
        return tool_use(found, _choice(choice), parallel)
    except ApiError as error:
        # In this API a tool has its function's fields, and other names for two of them.
        param = error.param and _renamed(error.param)
        raise replace(error, message=_renamed(error.message), param=param) from None


def _renamed(text: str) -> str:
    return text.replace(".function.parameters", ".input_schema").replace(".function.", ".")


def _tool(tool: Tool, place: str) -> ToolBody:
    if tool.type not in (None, "custom"):
        raise ApiError(
            400,
            f"{place} is the tool {quoted(tool.type)}, which this daemon cannot run; send only tools that "
            "have an input_schema",
            "unsupported_value",
            place,
        )
    for name in ("name", "input_schema"):
        if getattr(tool, name) is None:
            raise ApiError(400, f"{place}.{name} is missing", "invalid_value", f"{place}.{name}")
    if tool.defer_loading:
        raise ApiError(
            400,
            f"{place}.defer_loading is not supported, since there is no search for tools; leave it out",
            "unsupported_value",
            f"{place}.defer_loading",
        )
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise ApiError(
            400,
            f"{place}.allowed_callers has no 'direct', and this daemon runs no code that could call; add it",
            "unsupported_value",
            f"{place}.allowed_callers",
        )
    return ToolBody(type="function", function=tool_fields.FunctionBody(**_function(tool)))


def _function(tool: Tool) -> dict[str, Any]:
    schema = dict(tool.input_schema or {})
    if tool.input_examples:
        schema.setdefault("examples", tool.input_examples)
    given = {
        "name": tool.name,
        "description": tool.description,
        "parameters": schema,
        "strict": tool.strict,
    }
    return {name: value for name, value in given.items() if value is not None}


def _choice(choice: ToolChoice | None) -> tool_fields.ToolChoice | None:
    if choice is None:
        return None
    match choice.type:
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise ApiError(400, "tool_choice.name is missing", "invalid_value", "tool_choice.name")
            return tool_fields.NamedTool(type="function", function=tool_fields.FunctionName(name=choice.name))
        case "auto" | "none":
            return choice.type
