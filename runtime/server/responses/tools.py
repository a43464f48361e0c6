"""Tools as the Responses API writes them, flat."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from anespec.runtime.server.bodies import Body
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.openai import tool_fields
from anespec.runtime.server.openai.tool_fields import MOST_TOOLS, ToolBody, ToolUse, tool_use


class FunctionTool(Body):
    """A function that may be called; `parameters` is the JSON schema of its arguments.

    It is strict unless it says otherwise. Of the tools of other types, which OpenAI runs itself, there are
    none here.
    """

    type: str
    name: str | None = Field(default=None, pattern=tool_fields.NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolName(Body):
    """One of the tools."""

    type: str
    name: str | None = None


class ChosenTools(Body):
    """The function that must be called, or with `allowed_tools` some that may be or must be."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[ToolName] | None = Field(default=None, max_length=MOST_TOOLS)


ToolChoice = Literal["none", "auto", "required"] | ChosenTools


def use_of(tools: Sequence[FunctionTool], choice: ToolChoice | None, parallel: bool, unsaid: bool) -> ToolUse:
    """Return a request's choice of tools; `unsaid`: whether tools are strict that do not set it. Raises
    ApiError if it is not possible."""
    found = [_tool(tool, f"tools.{number}", unsaid) for number, tool in enumerate(tools)]
    try:
        return tool_use(found, _choice(choice), parallel)
    except ApiError as error:
        # What is a member of a tool's function there is a member of the tool here.
        message, param = error.message.replace(".function.", "."), error.param
        raise replace(error, message=message, param=param and param.replace(".function.", ".")) from None


def _tool(tool: FunctionTool, place: str, unsaid: bool) -> ToolBody:
    if tool.type != "function":
        raise ApiError(
            400,
            f"{place} is a tool that this daemon cannot run; send functions alone",
            "unsupported_value",
            place,
        )
    if tool.name is None:
        raise ApiError(400, f"{place}.name is missing", "invalid_value", f"{place}.name")
    function = tool.model_dump(exclude_unset=True, exclude={"type"})
    function["strict"] = unsaid if tool.strict is None else tool.strict
    return ToolBody(type="function", function=tool_fields.FunctionBody(**function))


def _choice(choice: ToolChoice | None) -> tool_fields.ToolChoice | None:
    if not isinstance(choice, ChosenTools):
        return choice
    if choice.type == "function":
        return _named(choice.name)
    if choice.type == "allowed_tools" and choice.tools:
        named = [_named(tool.name) for tool in choice.tools]
        allowed = tool_fields.AllowedTools(mode=choice.mode, tools=named)
        return tool_fields.AllowedChoice(type="allowed_tools", allowed_tools=allowed)
    raise ApiError(400, "tool_choice must name a function, or allow some", "unsupported_value", "tool_choice")


def _named(name: str | None) -> tool_fields.NamedTool:
    if name is None:
        raise ApiError(400, "tool_choice has a tool without a name", "invalid_value", "tool_choice")
    return tool_fields.NamedTool(type="function", function=tool_fields.FunctionName(name=name))
