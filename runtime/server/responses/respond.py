"""Serve `/v1/responses`: answer an input."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from starlette.responses import Response

from anespec.runtime.options import GenerationOptions
from anespec.runtime.sampling.parameters import Grammar
from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import Conversation, settled
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError, api_error
from anespec.runtime.server.http.streams import EVENTS
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai import tool_fields
from anespec.runtime.server.openai.chat_messages import template_messages
from anespec.runtime.server.openai.sampling_fields import (
    MostTokens,
    ResponseFormat,
    SamplingFields,
    effort_variables,
)
from anespec.runtime.server.openai.tool_fields import MOST_TOOLS, ToolBody, ToolUse, tool_use
from anespec.runtime.server.responses.answers import (
    FormatAnswer,
    ReasoningAnswer,
    ResponseAnswer,
    TextAnswer,
    ToolAnswer,
)
from anespec.runtime.server.responses.items import MOST_ITEMS, STATELESS, InputItem, messages_of
from anespec.runtime.server.responses.writer import ResponseWriter
from anespec.system.errors import GrammarError, PromptTooLongError


class FunctionTool(Body):
    """A function that may be called; `parameters` is the JSON schema of its arguments.

    `strict` is True by default. Tools of other types, which OpenAI runs itself, are refused.
    """

    type: str
    name: str | None = Field(default=None, pattern=tool_fields.NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolName(Body):
    """The name of a tool."""

    type: str
    name: str | None = None


class ChosenTools(Body):
    """The function that must be called; with `allowed_tools`, the functions that may or must be called."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[ToolName] | None = Field(default=None, max_length=MOST_TOOLS)


ToolChoice = Literal["none", "auto", "required"] | ChosenTools


def use_of(tools: Sequence[FunctionTool], choice: ToolChoice | None, parallel: bool, unsaid: bool) -> ToolUse:
    """Return a request's tools and the choice among them; `unsaid` is `strict` of tools that do not set it.

    Raises ApiError if the choice is not possible.
    """
    found = [_tool(tool, f"tools.{number}") for number, tool in enumerate(tools)]
    try:
        return tool_use(found, _choice(choice), parallel, unsaid)
    except ApiError as error:
        # In this API the fields of a function are fields of the tool.
        message, param = error.message.replace(".function.", "."), error.param
        raise replace(error, message=message, param=param and param.replace(".function.", ".")) from None


def _tool(tool: FunctionTool, place: str) -> ToolBody:
    if tool.type != "function":
        raise ApiError(
            400,
            f"{place} is a tool that this daemon cannot run; send only functions",
            "unsupported_value",
            place,
        )
    if tool.name is None:
        raise ApiError(400, f"{place}.name is missing", "invalid_value", f"{place}.name")
    function = tool.model_dump(exclude_unset=True, exclude={"type"})
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


MOST_PAIRS = 16
LOGPROBS = "message.output_text.logprobs"


class TextFormat(Body):
    """The format of the answer: any text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @property
    def grammar(self) -> Grammar | None:
        """Return the grammar of the answer. Raises ApiError if the schema is missing or too large."""
        fields: dict[str, Any] = {"type": self.type}
        if self.type == "json_schema":
            fields["json_schema"] = {"schema": self.schema_, "strict": self.strict}
        try:
            return ResponseFormat.model_validate(fields).grammar
        except ApiError as error:
            message = error.message.replace("response_format.json_schema", "text.format.schema")
            raise replace(error, message=message, param="text.format") from None


class TextBody(Body):
    """The requested kind of text."""

    format: TextFormat | None = None
    verbosity: str | None = Field(default=None, max_length=32)


class ReasoningBody(Body):
    """The reasoning effort: a word that the model's template defines, or `none`."""

    effort: str | None = Field(default=None, max_length=32)


def _said_by_the_user(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesBody(SamplingFields):
    """A request. Responses are not stored, so `store` must not be true."""

    limit: ClassVar[str] = "max_output_tokens"

    model: str | None = None
    input: Annotated[
        list[InputItem], BeforeValidator(_said_by_the_user, json_schema_input_type=str | list[InputItem])
    ] = Field(max_length=MOST_ITEMS)
    instructions: str | None = None
    max_output_tokens: MostTokens = None
    text: TextBody | None = None
    tools: list[FunctionTool] | None = Field(default=None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningBody | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=MOST_PAIRS)
    include: list[str] | None = None
    top_logprobs: int | None = None
    store: bool | None = None
    prompt: Any = None
    truncation: Literal["auto", "disabled"] = "disabled"

    def require_servable(self) -> None:
        """Raise ApiError if the request has a field that is not supported."""
        for name in ("store", "prompt"):
            if getattr(self, name):
                raise ApiError(400, f"{name} is not supported: {STATELESS}", "unsupported_value", name)
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            raise ApiError(
                400,
                "logprobs are available only in /v1/completions and /v1/chat/completions",
                "unsupported_value",
                "top_logprobs" if self.top_logprobs else "include",
            )
        if not self.input:
            raise ApiError(400, "input is empty; send at least one item", "invalid_value", "input")

    @property
    def leaves_strict_unsaid(self) -> bool:
        """Return whether a tool does not set `strict`."""
        return any(tool.strict is None for tool in self.tools or ())

    def tool_use(self, unsaid: bool) -> ToolUse:
        """Return the tools and the choice among them; `unsaid` is `strict` of tools that do not set it.

        Raises ApiError if the choice is not possible.
        """
        return use_of(self.tools or (), self.tool_choice, self.parallel_tool_calls is not False, unsaid)

    @property
    def variables(self) -> dict[str, object]:
        """Return the chat template's variables in addition to the messages."""
        said = self.text.verbosity if self.text is not None else None
        return {
            **effort_variables(self.reasoning.effort if self.reasoning is not None else None),
            **({} if said is None else {"verbosity": said}),
        }

    @property
    def format(self) -> TextFormat:
        """Return the requested format of the answer."""
        chosen = self.text.format if self.text is not None else None
        return chosen or TextFormat(type="text")


def begun(body: ResponsesBody, model: str, unsaid: bool, options: GenerationOptions) -> ResponseAnswer:
    """Return the initial response to a request; `model` is the served id, `unsaid` is as for `tool_use`."""
    choice = body.tool_choice or "auto"
    return ResponseAnswer(
        id=f"resp_{uuid.uuid4().hex}",
        object="response",
        created_at=int(time.time()),
        completed_at=None,
        status="in_progress",
        background=False,
        error=None,
        incomplete_details=None,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=None,
        reasoning=ReasoningAnswer(effort=body.reasoning.effort if body.reasoning else None, summary=None),
        store=False,
        temperature=options.temperature,
        text=TextAnswer(format=_format(body.format)),
        tool_choice=choice.model_dump(exclude_unset=True) if isinstance(choice, ChosenTools) else choice,
        tools=[
            ToolAnswer(
                type="function",
                name=tool.name or "",
                description=tool.description,
                parameters=tool.parameters,
                strict=unsaid if tool.strict is None else tool.strict,
            )
            for tool in body.tools or ()
        ],
        top_p=options.top_p,
        truncation=body.truncation,
        usage=None,
    )


def _format(asked: TextFormat) -> FormatAnswer:
    if asked.type != "json_schema":
        return FormatAnswer(type=asked.type)
    return FormatAnswer(
        type=asked.type,
        name=asked.name,
        description=asked.description,
        schema=asked.schema_ or {},
        strict=bool(asked.strict),
    )


async def respond(call: Call[ResponsesBody]) -> Response:
    """Answer an input."""
    return await _respond(call, unsaid=True)


async def _respond(call: Call[ResponsesBody], unsaid: bool) -> Response:
    body = call.body
    body.require_servable()
    conversation = Conversation(
        _messages(body),
        body.variables,
        body.tool_use(unsaid),
        body.format.grammar,
        trims=body.truncation == "auto",
    )
    options = body.options(max_tokens=body.max_output_tokens)

    def prepare(leased: Leased) -> Prepared:
        chosen = settled(options, leased.model)
        found = conversation.begin(leased.model, chosen, call.caller)
        return Prepared(found.runs, ResponseWriter(begun(body, leased.id, unsaid, chosen), found.reading))

    try:
        return await answer(call, body.model, prepare, bool(body.stream))
    except PromptTooLongError as error:
        raise replace(api_error(error), param="input") from None
    except GrammarError as error:
        if unsaid and body.leaves_strict_unsaid:
            # A schema that cannot be enforced is only a hint, unless the request is strict.
            return await _respond(call, unsaid=False)
        field = "tools" if conversation.grammar is None else "text.format"
        raise replace(api_error(error), param=field) from None


def _messages(body: ResponsesBody) -> list[dict[str, object]]:
    messages = messages_of(body.instructions, body.input)
    try:
        return template_messages(messages)
    except ApiError as error:
        raise replace(error, param="input") from None


async def refuse_kept(call: Call[None]) -> Response:
    """Answer that responses are not stored."""
    raise ApiError(404, f"there is no such response: {STATELESS}", "not_found", "response_id")


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/responses",
        "Answer an input, with OpenAI's Responses API.",
        respond,
        body=ResponsesBody,
        answer=ResponseAnswer,
        streams=EVENTS,
    ),
    *(
        Endpoint(method, "/v1/responses/{response_id}", "Not served.", refuse_kept, refuses=True)
        for method in ("GET", "DELETE")
    ),
)
