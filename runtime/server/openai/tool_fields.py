"""The tools of a request, and which of them may or must be called."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from anespec.runtime.server.constraints import CallConstraint
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.openai.schema_limits import require_modest
from anespec.runtime.server.tools.families import form_of
from anespec.runtime.server.tools.form import ToolFunction
from anespec.runtime.text.templates.needs import template_needs
from anespec.runtime.text.tokenizer import Tokenizer

MOST_TOOLS = 128
NAME = r"^[A-Za-z0-9_.-]{1,64}$"
"""The allowed characters of a function's name."""


class FunctionBody(Body):
    """A function that may be called; `parameters` is the JSON schema of its arguments."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool; functions alone are known."""

    type: str
    function: FunctionBody | None = None


class FunctionName(Body):
    """A function by name."""

    name: str


class NamedTool(Body):
    """One of the tools."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """Some of the tools, and whether one must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1, max_length=MOST_TOOLS)


class AllowedChoice(Body):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


_ORDER = list(FunctionBody.model_fields)

ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


@dataclass(frozen=True)
class ToolUse:
    """The tools for the template, and the callable functions. Empty without functions."""

    described: Sequence[dict[str, object]] = ()
    functions: Sequence[ToolFunction] = ()
    required: bool = False
    parallel: bool = True

    def constraint(self, template: str, tokenizer: Tokenizer) -> CallConstraint | None:
        """Return the calls that an answer may have with this chat template; None for none."""
        if not self.functions:
            return None
        form = form_of(template, tokenizer, self.functions)
        # What the template cannot write the next time must not be written now.
        parallel = self.parallel and not template_needs(template).single
        return CallConstraint(form, self.functions, parallel, self.required)


def tool_use(tools: Sequence[ToolBody], choice: ToolChoice | None, parallel: bool) -> ToolUse:
    """Return a request's choice of tools. Raises ApiError if it is not possible."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(
                400, "tool_choice asks for a tool, and there are none", "invalid_value", "tool_choice"
            )
        return ToolUse()
    known = {function.name: function for function in _functions(tools)}
    if len(known) < len(tools):
        raise ApiError(400, "two tools have one name", "invalid_value", "tools")
    if choice == "none":
        return ToolUse()
    described = tuple(map(_described, tools))
    if choice is None or isinstance(choice, str):
        return ToolUse(described, tuple(known.values()), choice == "required", parallel)
    named = [choice] if isinstance(choice, NamedTool) else choice.allowed_tools.tools
    if any(tool.function.name not in known for tool in named):
        raise ApiError(
            400, "tool_choice names a tool that is not among the tools", "invalid_value", "tool_choice"
        )
    required = isinstance(choice, NamedTool) or choice.allowed_tools.mode == "required"
    # Strict: where the model may choose, nothing but its grammar keeps it from the other tools.
    functions = {tool.function.name: replace(known[tool.function.name], strict=True) for tool in named}
    one = isinstance(choice, NamedTool)
    return ToolUse(described, tuple(functions.values()), required, parallel and not one)


def _described(tool: ToolBody) -> dict[str, object]:
    """A tool as templates read it: many of them take a description and parameters for granted."""
    assert tool.function is not None
    given = tool.function.model_dump(exclude_unset=True)
    given["description"] = given.get("description") or ""
    given["parameters"] = given.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {name: given[name] for name in sorted(given, key=_ORDER.index)}}


def _functions(tools: Sequence[ToolBody]) -> list[ToolFunction]:
    require_modest([tool.function.parameters for tool in tools if tool.function is not None], "tools")
    found = []
    for number, tool in enumerate(tools):
        if tool.type != "function" or tool.function is None:
            raise ApiError(
                400,
                f"tools.{number} is no function; send functions alone",
                "unsupported_value",
                f"tools.{number}",
            )
        parameters = tool.function.parameters
        place = f"tools.{number}.function.parameters"
        if parameters is not None and parameters.get("type", "object") != "object":
            raise ApiError(400, f"{place} must be the schema of an object", "invalid_value", place)
        found.append(ToolFunction(tool.function.name, parameters, bool(tool.function.strict)))
    return found
