"""`/v1/chat/completions`: conversations are answered."""

from starlette.responses import Response

from anespec.runtime.server.answering import Prepared, answer
from anespec.runtime.server.endpoint import Call, Endpoint
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.chat_answer import ChatAnswer
from anespec.runtime.server.openai.chat_body import ChatBody
from anespec.runtime.server.openai.chat_messages import template_messages
from anespec.runtime.server.openai.chat_writer import ChatWriter, Wanted
from anespec.runtime.server.reading import Reading


async def chat(call: Call[ChatBody]) -> Response:
    """Answer a conversation."""
    body = call.body
    body.require_text()
    messages = template_messages(body.messages)
    logprobs, reference = body.wanted_logprobs, body.reference
    wanted = Wanted(
        logprobs=logprobs is not None,
        usage=body.stream_options is not None and body.stream_options.include_usage,
        origins=body.anespec,
    )

    def prepare(leased: Leased) -> Prepared:
        model = leased.model
        prompt = model.chat_prompt(messages, body.variables)
        reading = Reading(model.tokenizer, prompt.tail)
        options = body.options(
            max_tokens=body.most_tokens,
            logprobs=logprobs,
            reference=reference,
            show_special=reading.markers,
        )
        runs = model.run(prompt.ids, options, call.caller)
        return Prepared(runs, ChatWriter(leased.id, model.tokenizer, reading, wanted, len(runs)))

    return await answer(call, body.model, prepare, bool(body.stream))


ENDPOINT = Endpoint(
    "POST",
    "/v1/chat/completions",
    "Answer a conversation.",
    chat,
    body=ChatBody,
    answer=ChatAnswer,
)
