"""Define the answers of `/v1/messages`: the message with its blocks, and errors."""

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from anespec.runtime.engine.completion import Summary
from anespec.runtime.engine.requests import FinishReason
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.request_log import record_of
from anespec.runtime.server.openai.usage import Timings

# Errors.


class ErrorFacts(BaseModel):
    """The kind of an error, and a sentence."""

    type: str
    message: str


class AnthropicError(BaseModel):
    """Anthropic's error object, which a stream sends as an event, too."""

    type: Literal["error"]
    error: ErrorFacts
    request_id: str

    @classmethod
    def of(cls, error: ApiError, request_id: str) -> "AnthropicError":
        """Return the object for an error."""
        kind = "api_error" if error.kind == "server_error" else error.kind
        kind = "request_too_large" if error.status == 413 else kind
        return cls(type="error", error=ErrorFacts(type=kind, message=error.sentence), request_id=request_id)


class _Refusal(Response):
    """The response for an error, which has the id of its request."""

    def __init__(self, error: ApiError) -> None:
        self._error = error
        self.status_code = error.status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        found = AnthropicError.of(self._error, record_of(scope).request_id)
        response = JSONResponse(found.model_dump(), self.status_code, headers=dict(self._error.headers))
        await response(scope, receive, send)


def anthropic_error(error: ApiError) -> Response:
    """Return the response for an error."""
    return _Refusal(error)


# The message.


class TextBlock(BaseModel):
    """A piece of the answer."""

    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    """The model's reasoning."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    """A tool call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputDetails(BaseModel):
    """Details of the output's tokens."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """The tokens of a request. All three kinds of input tokens together are the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails | None = None


class MessageAnswer(BaseModel):
    """The answer, or its first state in a stream. `timings` is an addition of anespec."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    timings: Timings | None = None


class TokensAnswer(BaseModel):
    """The number of a prompt's tokens."""

    input_tokens: int


def stop_reason_of(summary: Summary, stops: Collection[str], calls: bool) -> StopReason:
    """Return why an answer ended. `stops` are the request's stop sequences; `calls`: it has tool calls."""
    match summary.finish:
        case FinishReason.STOP:
            if summary.stop in stops:
                return "stop_sequence"
            return "tool_use" if calls else "end_turn"
        case FinishReason.CONTEXT:
            return "model_context_window_exceeded"
        case _:
            return "max_tokens"


def usage_of(summary: Summary, thinking_tokens: int) -> MessageUsage:
    """Return the usage of an answer."""
    counts = summary.statistics
    return MessageUsage(
        input_tokens=counts.prompt_tokens - counts.reused_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=counts.reused_tokens,
        output_tokens=len(summary.tokens),
        output_tokens_details=OutputDetails(thinking_tokens=thinking_tokens),
    )
