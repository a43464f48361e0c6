"""`/v1/chat/completions`: conversations are answered."""

from starlette.responses import Response

from anespec.manifests.errors import GrammarError
from anespec.runtime.server.answering import Prepared, answer
from anespec.runtime.server.constraints import constrained
from anespec.runtime.server.endpoint import Call, Endpoint
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.chat_answer import ChatAnswer
from anespec.runtime.server.openai.chat_body import ChatBody
from anespec.runtime.server.openai.chat_messages import template_messages
from anespec.runtime.server.openai.chat_writer import ChatWriter, Wanted
from anespec.runtime.server.reading import Reading
from anespec.runtime.server.tools.choosing import takes_tools


async def chat(call: Call[ChatBody]) -> Response:
    """Answer a conversation."""
    body = call.body
    body.require_text()
    messages = template_messages(body.messages)
    logprobs, reference = body.wanted_logprobs, body.reference
    variables, tools, grammar = body.variables, body.tool_use, body.wanted_grammar
    wanted = Wanted(
        logprobs=logprobs is not None,
        usage=body.stream_options is not None and body.stream_options.include_usage,
        origins=body.anespec,
    )

    def prepare(leased: Leased) -> Prepared:
        model = leased.model
        template = model.chat_template or ""
        if tools.functions and not takes_tools(template):
            raise ApiError(
                400, "this model's chat template has no place for tools", "unsupported_value", "tools"
            )
        prompt = model.chat_prompt(messages, {**variables, "tools": tools.described or None})
        calls = tools.constraint(template, model.tokenizer)
        held_to = constrained(grammar, calls, template, prompt.tail, model.tokenizer)
        form = calls.form if calls is not None else None
        sure = calls is not None and calls.sure and (calls.required or grammar is None)
        reading = Reading(model.tokenizer, prompt.tail, form, sure)
        options = body.options(
            max_tokens=body.most_tokens,
            logprobs=logprobs,
            reference=reference,
            show_special=reading.markers,
            grammar=held_to,
        )
        runs = model.run(prompt.ids, options, call.caller)
        return Prepared(runs, ChatWriter(leased.id, model.tokenizer, reading, wanted, len(runs)))

    try:
        return await answer(call, body.model, prepare, bool(body.stream))
    except GrammarError as error:
        raise ApiError(400, str(error), "invalid_grammar", body.grammar_field) from None


ENDPOINT = Endpoint(
    "POST",
    "/v1/chat/completions",
    "Answer a conversation.",
    chat,
    body=ChatBody,
    answer=ChatAnswer,
)
