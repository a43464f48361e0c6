"""Define the answers of Ollama's API: one object, or a line for each piece of text and a last one with the
counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from anespec.runtime.engine.completion import Summary
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.openai.chat_answer import TokenLogprobs
from anespec.runtime.server.openai.usage import finish_reason


class OllamaError(BaseModel):
    """An error, as a sentence."""

    error: str


def ollama_error(error: ApiError) -> Response:
    """Return the response for an error."""
    return JSONResponse(
        OllamaError(error=error.sentence).model_dump(), error.status, headers=dict(error.headers)
    )


class OllamaFunction(BaseModel):
    """The function of a call."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(BaseModel):
    """A tool call."""

    id: str
    function: OllamaFunction


class OllamaAnswer(BaseModel):
    """The message, or a piece of it in a stream."""

    role: Literal["assistant"]
    content: str
    thinking: str = ""
    tool_calls: list[OllamaCall] = []


class Line(BaseModel):
    """The common fields of all answers. Durations are in nanoseconds. Only the last line has the fields that
    are known at the end."""

    model: str
    created_at: datetime
    done: bool
    done_reason: Literal["stop", "length", "load"] | None = None
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    logprobs: list[TokenLogprobs] = []

    def end(self, summary: Summary, total: int, load: int) -> None:
        """Add the fields of the last line; `total` and `load` are in nanoseconds."""
        counts = summary.statistics
        self.done, self.done_reason = True, finish_reason(summary)
        self.total_duration, self.load_duration = total, load
        self.prompt_eval_count, self.eval_count = counts.prompt_tokens, counts.output_tokens
        self.prompt_eval_duration = round(counts.prefill_seconds * 1e9)
        self.eval_duration = round(counts.decode_seconds * 1e9)


class ChatLine(Line):
    """A line of `/api/chat`."""

    message: OllamaAnswer


class GenerateLine(Line):
    """A line of `/api/generate`."""

    response: str
    thinking: str = ""


@dataclass(frozen=True)
class Piece:
    """The content of a line."""

    content: str = ""
    thinking: str = ""
    calls: Sequence[OllamaCall] = ()


def chat_line(model: str, piece: Piece) -> ChatLine:
    """Return the line for a piece of a chat's answer."""
    message = OllamaAnswer(role="assistant", content=piece.content)
    if piece.thinking:
        message.thinking = piece.thinking
    if piece.calls:
        message.tool_calls = list(piece.calls)
    return ChatLine(model=model, created_at=datetime.now(UTC), done=False, message=message)


def generate_line(model: str, piece: Piece) -> GenerateLine:
    """Return the line for a piece of a continuation."""
    found = GenerateLine(model=model, created_at=datetime.now(UTC), done=False, response=piece.content)
    if piece.thinking:
        found.thinking = piece.thinking
    return found
