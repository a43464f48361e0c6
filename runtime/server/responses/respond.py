"""`/v1/responses`: an input is answered."""

from dataclasses import replace

from starlette.responses import Response

from anespec.manifests.errors import GrammarError, PromptTooLongError
from anespec.runtime.server.answering import Prepared, answer
from anespec.runtime.server.conversing import Conversation
from anespec.runtime.server.endpoint import Call, Endpoint
from anespec.runtime.server.errors import ApiError, api_error
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.chat_messages import template_messages
from anespec.runtime.server.responses.answers import ResponseAnswer
from anespec.runtime.server.responses.body import ResponsesBody
from anespec.runtime.server.responses.echo import begun
from anespec.runtime.server.responses.items import STATELESS, messages_of
from anespec.runtime.server.responses.writer import ResponseWriter
from anespec.runtime.server.settling import settled
from anespec.runtime.server.streams import EVENTS


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
