"""Serve `/api/chat`: answer conversations."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from starlette.responses import Response

from anespec.runtime.engine.completion import TextStream
from anespec.runtime.options import GenerationOptions
from anespec.runtime.server.answers.conversing import Conversation
from anespec.runtime.server.answers.reading import AnswerReader
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import LINES
from anespec.runtime.server.models import ServingModel
from anespec.runtime.server.ollama.answers import ChatLine, OllamaError, chat_line, ollama_error
from anespec.runtime.server.ollama.fields import OllamaBody
from anespec.runtime.server.ollama.writer import load, reply
from anespec.runtime.server.openai.chat_messages import (
    MOST_CALLS,
    MOST_MESSAGES,
    MessageBody,
    past_call,
    template_messages,
)
from anespec.runtime.server.openai.tool_fields import MOST_TOOLS, ToolBody, tool_use


class OllamaCalled(Body):
    """The function of an earlier call."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaPastCall(Body):
    """A call that the model made earlier; newer clients send its `id`."""

    id: str | None = None
    function: OllamaCalled


class OllamaMessage(Body):
    """A message of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[OllamaPastCall] | None = Field(default=None, max_length=MOST_CALLS)
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaBody):
    """A conversation and its tools. An empty conversation asks to load the model."""

    messages: list[OllamaMessage] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: list[ToolBody] | None = Field(default=None, max_length=MOST_TOOLS)


async def chat(call: Call[OllamaChatBody]) -> Response:
    """Answer a conversation."""
    body = call.body
    if not body.messages:
        return await load(call, chat_line)
    messages = template_messages(_read(body.messages))
    tools = tool_use(body.tools or (), None, parallel=True)
    conversation = Conversation(messages, body.variables, tools, body.grammar)

    def begin(model: ServingModel, options: GenerationOptions) -> tuple[Sequence[TextStream], AnswerReader]:
        begun = conversation.begin(model, options, call.caller)
        return begun.runs, begun.reading.reader()

    return await reply(call, chat_line, begin)


def _read(messages: Sequence[OllamaMessage]) -> list[MessageBody]:
    """Return the messages in OpenAI's format, where calls have ids, and results name their call."""
    found: list[MessageBody] = []
    open_calls: list[tuple[str, str]] = []
    made = 0
    for number, message in enumerate(messages):
        if message.images:
            raise ApiError(400, "this model reads only text; leave out the image", param=f"messages.{number}")
        calls = []
        for call in message.tool_calls or ():
            id = call.id or f"call_{made}"
            made += 1
            calls.append(past_call(id, call.function.name, call.function.arguments))
            open_calls.append((id, call.function.name))
        answered = message.tool_call_id
        if message.role == "tool" and answered is None and open_calls:
            answered = _take(open_calls, message.tool_name)
        found.append(
            MessageBody(
                role=message.role,
                content=message.content if message.content or not calls else None,
                name=message.tool_name,
                reasoning_content=message.thinking or None,
                tool_calls=calls or None,
                tool_call_id=answered,
            )
        )
    return found


def _take(open_calls: list[tuple[str, str]], name: str | None) -> str:
    """Remove and return the id of the first call without a result, preferably one with this name."""
    number = next((at for at, (_, called) in enumerate(open_calls) if called == name), 0)
    return open_calls.pop(number)[0]


ENDPOINT = Endpoint(
    "POST",
    "/api/chat",
    "Answer a conversation, as Ollama does.",
    chat,
    body=OllamaChatBody,
    answer=ChatLine,
    streams=LINES,
    refusal=ollama_error,
    refused=OllamaError,
    as_curl=True,
)
