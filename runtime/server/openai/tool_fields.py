"""Define the fields of a request's tools, and of the choice which may or must be called."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from anespec.runtime.server.constraints import CallConstraint
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.openai.schema_limits import require_enforceable, require_modest
from anespec.runtime.server.tools.families import form_of
from anespec.runtime.server.tools.form import ToolFunction
from anespec.runtime.text.templates.needs import template_needs
from anespec.runtime.text.tokenizer import Tokenizer

MOST_TOOLS = 128
NAME = r"^[A-Za-z0-9_.-]{1,128}$"
"""The allowed characters of a function's name, as many as Anthropic's API allows: twice OpenAI's."""


class FunctionBody(Body):
    """A function that may be called; `parameters` is the JSON schema of its arguments."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool; only functions are supported."""

    type: str
    function: FunctionBody | None = None


class FunctionName(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """A choice of one tool."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """A subset of the tools, and whether one must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1, max_length=MOST_TOOLS)


class AllowedChoice(Body):
    """A choice among a subset of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


_ORDER = list(FunctionBody.model_fields)

ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


@dataclass(frozen=True)
class ToolUse:
    """The tools for the template, and the functions that may be called. Empty if there are none."""

    described: Sequence[dict[str, object]] = ()
    functions: Sequence[ToolFunction] = ()
    required: bool = False
    parallel: bool = True

    def constraint(self, template: str, tokenizer: Tokenizer) -> CallConstraint | None:
        """Return the constraint on the calls of an answer with this chat template; None if it may have
        none."""
        if not self.functions:
            return None
        form = form_of(template, tokenizer, self.functions)
        # Templates that cannot render several calls must not get several.
        parallel = self.parallel and not template_needs(template).single
        return CallConstraint(form, self.functions, parallel, self.required)


def tool_use(
    tools: Sequence[ToolBody], choice: ToolChoice | None, parallel: bool, unsaid: bool = False
) -> ToolUse:
    """Return a request's choice of tools; `unsaid` is `strict` of functions that do not set it.

    Raises ApiError if the choice is not possible, or a function that sets `strict` cannot be enforced.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(
                400, "tool_choice requires a tool, and there are none", "invalid_value", "tool_choice"
            )
        return ToolUse()
    known = {function.name: function for function in _functions(tools, unsaid)}
    if len(known) < len(tools):
        raise ApiError(400, "two tools have the same name", "invalid_value", "tools")
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
    # Strict, since only the grammar prevents calls of other tools.
    functions = {tool.function.name: replace(known[tool.function.name], strict=True) for tool in named}
    one = isinstance(choice, NamedTool)
    return ToolUse(described, tuple(functions.values()), required, parallel and not one)


def _described(tool: ToolBody) -> dict[str, object]:
    """Return a tool for templates; many templates need a description and parameters."""
    assert tool.function is not None
    given = tool.function.model_dump(exclude_unset=True)
    given["description"] = given.get("description") or ""
    given["parameters"] = given.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {name: given[name] for name in sorted(given, key=_ORDER.index)}}


def _functions(tools: Sequence[ToolBody], unsaid: bool) -> list[ToolFunction]:
    require_modest([tool.function.parameters for tool in tools if tool.function is not None], "tools")
    found = []
    for number, tool in enumerate(tools):
        if tool.type != "function" or tool.function is None:
            raise ApiError(
                400,
                f"tools.{number} is not a function; send only functions",
                "unsupported_value",
                f"tools.{number}",
            )
        parameters = tool.function.parameters
        place = f"tools.{number}.function.parameters"
        if parameters is not None and parameters.get("type", "object") != "object":
            raise ApiError(400, f"{place} must be the schema of an object", "invalid_value", place)
        strict = tool.function.strict
        if strict:
            require_enforceable(parameters, place, f"the function {tool.function.name}")
        found.append(ToolFunction(tool.function.name, parameters, unsaid if strict is None else strict))
    return found
