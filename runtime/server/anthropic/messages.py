"""Serve `/v1/messages`, which answers conversations, and `/v1/messages/count_tokens`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from starlette.responses import Response

from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import settled
from anespec.runtime.server.answers.working import answer_work
from anespec.runtime.server.anthropic.answers import (
    AnthropicError,
    MessageAnswer,
    TokensAnswer,
    anthropic_error,
)
from anespec.runtime.server.anthropic.fields import MessagesBody, PromptBody
from anespec.runtime.server.anthropic.writer import MessageWriter
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import api_error, grammar_named
from anespec.runtime.server.http.request_log import record_of
from anespec.runtime.server.http.streams import EVENTS, as_json
from anespec.runtime.server.models import Leased
from anespec.system.errors import PromptTooLongError


async def create(call: Call[MessagesBody]) -> Response:
    """Answer a conversation."""
    body = call.body
    conversation = body.conversation()
    options = body.options(max_tokens=body.max_tokens, stop=body.stops or None, choices=1)
    request_id = record_of(call.request.scope).request_id

    def prepare(leased: Leased) -> Prepared:
        begun = conversation.begin(leased.model, settled(options, leased.model), call.caller)
        prompt_tokens = len(begun.runs[0].prompt_ids)
        writer = MessageWriter(
            leased.id, begun.reading, prompt_tokens, body.stops, body.shows_thinking, request_id
        )
        return Prepared(begun.runs, writer)

    with _named_errors(body):
        return await answer(call, body.model, prepare, bool(body.stream))


async def count_tokens(call: Call[PromptBody]) -> Response:
    """Count the tokens of the prompt that a conversation becomes."""
    body = call.body
    conversation = body.conversation()

    def work(leased: Leased) -> bytes:
        return as_json(TokensAnswer(input_tokens=len(conversation.prompt(leased.model).ids))).encode()

    with _named_errors(body):
        return await answer_work(call, body.model, work)


@contextmanager
def _named_errors(body: PromptBody) -> Iterator[None]:
    """Add to errors what clients need: the field, and the words by which Claude Code knows a long prompt."""
    try:
        with grammar_named(body.format_field):
            yield
    except PromptTooLongError as error:
        found = api_error(error)
        raise replace(found, message=f"prompt is too long: {found.message}", param=None) from None


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/messages",
        "Answer a conversation, with Anthropic's Messages API.",
        create,
        body=MessagesBody,
        answer=MessageAnswer,
        streams=EVENTS,
        refusal=anthropic_error,
        refused=AnthropicError,
        query=("beta",),
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation, with Anthropic's Messages API.",
        count_tokens,
        body=PromptBody,
        answer=TokensAnswer,
        refusal=anthropic_error,
        refused=AnthropicError,
        query=("beta",),
    ),
)
