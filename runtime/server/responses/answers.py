"""Define the answers of `/v1/responses`."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from anespec.runtime.engine.completion import Summary
from anespec.runtime.server.openai.usage import Timings

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class ReasoningText(BaseModel):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class OutputText(BaseModel):
    """A piece of the answer."""

    type: Literal["output_text"]
    text: str
    annotations: tuple[()]
    logprobs: tuple[()]


class ReasoningItem(BaseModel):
    """The model's reasoning."""

    id: str
    type: Literal["reasoning"]
    summary: tuple[()]
    content: list[ReasoningText]
    status: ItemStatus


class MessageItem(BaseModel):
    """The model's text."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]
    status: ItemStatus


class CallItem(BaseModel):
    """A tool call; the arguments are JSON text."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = ReasoningItem | MessageItem | CallItem


class InputDetails(BaseModel):
    """Details of the input's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """Details of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """The tokens of a request."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """The reason why an answer failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """The reason why an answer ended early: a limit was reached."""

    reason: Literal["max_output_tokens"]


class FormatAnswer(BaseModel):
    """The requested format."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool = False


class TextAnswer(BaseModel):
    """The requested kind of text."""

    format: FormatAnswer


class ReasoningAnswer(BaseModel):
    """The requested reasoning effort."""

    effort: str | None
    summary: None


class ToolAnswer(BaseModel):
    """A function that may be called."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ResponseAnswer(BaseModel):
    """The answer, or its current state in a stream. `timings` is an addition of anespec."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: ReasoningAnswer
    store: Literal[False]
    temperature: float
    text: TextAnswer
    tool_choice: str | dict[str, Any]
    tools: list[ToolAnswer]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    timings: Timings | None = None


def usage_of(summary: Summary, reasoning_tokens: int) -> ResponseUsage:
    """Return the usage of an answer."""
    counts, output = summary.statistics, len(summary.tokens)
    return ResponseUsage(
        input_tokens=counts.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=counts.reused_tokens, cache_write_tokens=0),
        output_tokens=output,
        output_tokens_details=OutputDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=counts.prompt_tokens + output,
    )
