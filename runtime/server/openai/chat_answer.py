"""The answers of `/v1/chat/completions`, whole or in parts."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from anespec.runtime.requests import FinishReason, OutputToken
from anespec.runtime.server.openai.usage import Timings, Usage
from anespec.runtime.text.tokenizer import Tokenizer

ChatFinish = Literal["stop", "length", "tool_calls"]


class FunctionAnswer(BaseModel):
    """A call's function, or what of it has come; the arguments are JSON, written out."""

    name: str = ""
    arguments: str = ""


class CallAnswer(BaseModel):
    """A tool call, or what of it has come; `index` tells calls apart in a stream."""

    index: int = 0
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionAnswer


class MessageAnswer(BaseModel):
    """The message, or what of it has come. Fields that do not apply are left out."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    reasoning_content: str = ""
    tool_calls: tuple[CallAnswer, ...] = ()


class TopLogprob(BaseModel):
    """A token that might have been, and its logprob."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(BaseModel):
    """A token of the output, its logprob and those of the likeliest."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Of all tokens of the output in order, reasoning and tool calls among them."""

    content: list[TokenLogprobs]
    refusal: None = None


class TokenOrigin(BaseModel):
    """How a token came to be: a `carry`, a `draft` that a source had guessed, or `forced` by a grammar."""

    kind: str
    source: str | None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish


class ChatAnswer(BaseModel):
    """The answers; `truncated_messages` of the request the model did not see, where some had no room."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    truncated_messages: int = 0


class PartChoice(BaseModel):
    """The state of one answer so far, and its tokens; `ended_by` says more than `finish_reason`."""

    index: int
    delta: MessageAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinish | None = None
    anespec: tuple[TokenOrigin, ...] = ()
    ended_by: FinishReason | None = None


class ChatPart(BaseModel):
    """One event of a stream; the first says of `truncated_messages`, as `ChatAnswer` does."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[PartChoice]
    usage: Usage | None = None
    timings: Timings | None = None
    truncated_messages: int = 0


def logprobs_of(tokens: Sequence[OutputToken], tokenizer: Tokenizer) -> ChatLogprobs:
    """The logprobs of tokens that were asked for with theirs."""

    def entry(id: int) -> tuple[str, list[int]]:
        piece = tokenizer.piece(id, skip_special=False)
        return piece.decode("utf-8", "replace"), list(piece)

    found = []
    for token in tokens:
        text, octets = entry(token.id)
        tops = [(*entry(top.token), top.logprob) for top in token.top]
        found.append(
            TokenLogprobs(
                token=text,
                logprob=token.logprob,
                bytes=octets,
                top_logprobs=[TopLogprob(token=name, bytes=own, logprob=at) for name, own, at in tops],
            )
        )
    return ChatLogprobs(content=found, refusal=None)
