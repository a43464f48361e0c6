"""`/v1/chat/completions`: conversations are answered."""

from dataclasses import replace

from starlette.responses import Response

from anespec.manifests.errors import GrammarError
from anespec.runtime.server.answering import Prepared, answer
from anespec.runtime.server.conversing import Conversation
from anespec.runtime.server.endpoint import Call, Endpoint
from anespec.runtime.server.errors import api_error
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.chat_answer import ChatAnswer
from anespec.runtime.server.openai.chat_body import ChatBody
from anespec.runtime.server.openai.chat_messages import template_messages
from anespec.runtime.server.openai.chat_writer import ChatWriter, Wanted
from anespec.runtime.server.settling import settled
from anespec.runtime.server.streams import EVENTS


async def chat(call: Call[ChatBody]) -> Response:
    """Answer a conversation."""
    body = call.body
    body.require_text()
    conversation = Conversation(
        template_messages(body.messages),
        body.variables,
        body.tool_use,
        body.wanted_grammar,
        trims=body.truncation == "auto",
        fallback=body.fallback_template,
    )
    logprobs = body.wanted_logprobs
    options = body.options(max_tokens=body.most_tokens, logprobs=logprobs, reference=body.reference)
    wanted = Wanted(
        logprobs=logprobs is not None,
        usage=body.includes_usage,
        origins=body.anespec,
    )

    def prepare(leased: Leased) -> Prepared:
        begun = conversation.begin(leased.model, settled(options, leased.model), call.caller)
        return Prepared(begun.runs, ChatWriter(leased.id, leased.model.tokenizer, begun, wanted))

    try:
        return await answer(call, body.model, prepare, bool(body.stream), runs=options.choices)
    except GrammarError as error:
        raise replace(api_error(error), param=body.grammar_field) from None


ENDPOINT = Endpoint(
    "POST",
    "/v1/chat/completions",
    "Answer a conversation.",
    chat,
    body=ChatBody,
    answer=ChatAnswer,
    streams=EVENTS,
)
