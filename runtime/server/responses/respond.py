"""`/v1/responses`: an input is answered."""

import time
import uuid
from dataclasses import replace

from starlette.responses import Response

from anespec.runtime.options import GenerationOptions
from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import Conversation
from anespec.runtime.server.answers.settling import settled
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError, api_error
from anespec.runtime.server.http.streams import EVENTS
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.chat_messages import template_messages
from anespec.runtime.server.responses.answers import (
    FormatAnswer,
    ReasoningAnswer,
    ResponseAnswer,
    TextAnswer,
    ToolAnswer,
)
from anespec.runtime.server.responses.body import ChosenTools, ResponsesBody, TextFormat
from anespec.runtime.server.responses.items import STATELESS, messages_of
from anespec.runtime.server.responses.writer import ResponseWriter
from anespec.system.errors import GrammarError, PromptTooLongError


def begun(body: ResponsesBody, model: str, unsaid: bool, options: GenerationOptions) -> ResponseAnswer:
    """The response of a request to what is served as `model`, with `options`; `unsaid` as for `tool_use`."""
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
        truncation="disabled",
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
    conversation = Conversation(_messages(body), body.variables, body.tool_use(unsaid), body.format.grammar)
    options = body.options(max_tokens=body.max_output_tokens, choices=1)

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
    """Say that no response is kept."""
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
