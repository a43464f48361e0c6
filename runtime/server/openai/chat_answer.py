"""Write the answers of `/v1/chat/completions`, whole or as a stream."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.engine.requests import FinishReason, OutputToken
from anespec.runtime.server.answers.conversing import Begun
from anespec.runtime.server.answers.reading import AnswerReader
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import DONE, event
from anespec.runtime.server.openai.usage import Timings, Usage, finish_reason, timings_of, usage_of
from anespec.runtime.server.parts import (
    AnswerPart,
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from anespec.runtime.text.tokenizer import Tokenizer

ChatFinish = Literal["stop", "length", "tool_calls"]


class FunctionAnswer(BaseModel):
    """The function of a call, or a piece of it in a stream. `arguments` is JSON text."""

    name: str = ""
    arguments: str = ""


class CallAnswer(BaseModel):
    """A tool call, or a piece of it in a stream; `index` is its number in the answer."""

    index: int = 0
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionAnswer


class MessageAnswer(BaseModel):
    """The message, or a piece of it in a stream. Fields that do not apply are left out."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    reasoning_content: str = ""
    tool_calls: tuple[CallAnswer, ...] = ()


class TopLogprob(BaseModel):
    """An alternative token, and its logprob."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(BaseModel):
    """An output token, its logprob, and those of the most likely tokens."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """The logprobs of all output tokens in order, reasoning and tool calls included."""

    content: list[TokenLogprobs]
    refusal: None = None


class TokenOrigin(BaseModel):
    """The origin of a token: `carry` (sampled by a pass), an accepted `draft` of a source, or `forced` by a
    grammar."""

    kind: str
    source: str | None


class ChatChoice(BaseModel):
    """One answer of a request."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish


class ChatAnswer(BaseModel):
    """The answers. `truncated_messages` is the number of the request's messages that did not fit the
    context."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    truncated_messages: int = 0


class PartChoice(BaseModel):
    """The changes of one answer, and its new tokens; `ended_by` is more precise than `finish_reason`."""

    index: int
    delta: MessageAnswer
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinish | None = None
    anespec: tuple[TokenOrigin, ...] = ()
    ended_by: FinishReason | None = None


class ChatPart(BaseModel):
    """An event of a stream; the first one has `truncated_messages`, as in `ChatAnswer`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[PartChoice]
    usage: Usage | None = None
    timings: Timings | None = None
    truncated_messages: int = 0


def logprobs_of(tokens: Sequence[OutputToken], tokenizer: Tokenizer) -> ChatLogprobs:
    """Return the logprobs of tokens that were requested with logprobs."""

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


@dataclass(frozen=True)
class Wanted:
    """The data that a request asks for in addition to the text."""

    logprobs: bool = False
    usage: bool = False
    origins: bool = False


@dataclass
class _Choice:
    """The state of one streamed answer, and its tokens that no event has sent yet."""

    reader: AnswerReader
    untold: list[OutputToken] = field(default_factory=list)
    calls: int = 0


class ChatWriter:
    """The writer of the answers to one request."""

    def __init__(self, model: str, tokenizer: Tokenizer, begun: Begun, wanted: Wanted) -> None:
        """Write the answers of the runs in `begun`."""
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._reading = begun.reading
        self._left_out = begun.left_out
        self._wanted = wanted
        self._choices = [_Choice(begun.reading.reader()) for _ in begun.runs]

    def begin(self) -> Iterable[bytes]:
        """Return an event with the role for each answer."""
        for number in range(len(self._choices)):
            first = MessageAnswer(role="assistant", content=None if self._reading.calls else "")
            chunk = self._part(PartChoice(index=number, delta=first, finish_reason=None))
            if self._left_out:
                chunk.truncated_messages = self._left_out
            yield event(chunk)

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        """Return events with the changes of the message."""
        choice = self._choices[run]
        if chunk.token is not None:
            choice.untold.append(chunk.token)
        for part in choice.reader.push(chunk.text):
            yield self._said(run, part)

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        """Return the held-back text, the finish reason of each answer, and the usage."""
        for number, (choice, summary) in enumerate(zip(self._choices, summaries, strict=True)):
            for part in choice.reader.end():
                yield self._said(number, part)
            last = self._choice(number, MessageAnswer())
            last.finish_reason = _finish(summary, choice.calls > 0)
            if self._wanted.origins:
                last.ended_by = summary.finish
            chunk = self._part(last)
            chunk.timings = timings_of(summary)
            yield event(chunk)
        if self._wanted.usage:
            chunk = self._part()
            chunk.usage = self._usage(summaries)
            yield event(chunk)
        yield DONE

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """Return an event with OpenAI's error object."""
        yield event(error.answer())

    def whole(self, summaries: Sequence[Summary]) -> ChatAnswer:
        """Return the whole answers."""
        answer = ChatAnswer(
            id=self._id,
            object="chat.completion",
            created=self._created,
            model=self._model,
            choices=[self._answer(number, summary) for number, summary in enumerate(summaries)],
            usage=self._usage(summaries),
            timings=timings_of(summaries[0]),
        )
        if self._left_out:
            answer.truncated_messages = self._left_out
        return answer

    def _answer(self, number: int, summary: Summary) -> ChatChoice:
        reader = self._choices[number].reader
        message = _message([*reader.push(summary.text), *reader.end()])
        return ChatChoice(
            index=number,
            message=message,
            logprobs=self._logprobs(summary.tokens),
            finish_reason=_finish(summary, bool(message.tool_calls)),
        )

    def _said(self, run: int, part: AnswerPart) -> bytes:
        match part:
            case ReasoningDelta(text):
                delta = MessageAnswer(reasoning_content=text)
            case ContentDelta(text):
                delta = MessageAnswer(content=text)
            case ToolCallStart(index, id, name):
                self._choices[run].calls += 1
                function = FunctionAnswer(name=name, arguments="")
                delta = MessageAnswer(
                    tool_calls=(CallAnswer(index=index, id=id, type="function", function=function),)
                )
            case ToolArgumentsDelta(index, text):
                call = CallAnswer(index=index, function=FunctionAnswer(arguments=text))
                delta = MessageAnswer(tool_calls=(call,))
        return event(self._part(self._choice(run, delta)))

    def _choice(self, run: int, delta: MessageAnswer) -> PartChoice:
        """Return a choice of an event, with the requested data on the tokens since the last event."""
        found = PartChoice(index=run, delta=delta, finish_reason=None)
        choice = self._choices[run]
        if choice.untold:
            if self._wanted.logprobs:
                found.logprobs = self._logprobs(choice.untold)
            if self._wanted.origins:
                found.anespec = tuple(
                    TokenOrigin(kind=token.kind.value, source=token.source) for token in choice.untold
                )
            choice.untold = []
        return found

    def _part(self, *choices: PartChoice) -> ChatPart:
        found = ChatPart(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            choices=list(choices),
        )
        if self._wanted.usage:
            found.usage = None
        return found

    def _logprobs(self, tokens: Sequence[OutputToken]) -> ChatLogprobs | None:
        return logprobs_of(tokens, self._tokenizer) if self._wanted.logprobs else None

    def _usage(self, summaries: Sequence[Summary]) -> Usage:
        return usage_of(summaries, sum(self._reading.reasoning_tokens(found) for found in summaries))


def _finish(summary: Summary, calls: bool) -> ChatFinish:
    reason = finish_reason(summary)
    return "tool_calls" if calls and reason == "stop" else reason


def _message(parts: Iterable[AnswerPart]) -> MessageAnswer:
    """Join the parts of an answer to a message."""
    said = "".join(part.text for part in parts if isinstance(part, ContentDelta))
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    calls = tuple(_calls(parts))
    message = MessageAnswer(role="assistant", content=said if said or not calls else None, refusal=None)
    if thought:
        message.reasoning_content = thought
    if calls:
        message.tool_calls = calls
    return message


def _calls(parts: Iterable[AnswerPart]) -> Iterator[CallAnswer]:
    for call in parts:
        if isinstance(call, ToolCallStart):
            arguments = "".join(
                part.text
                for part in parts
                if isinstance(part, ToolArgumentsDelta) and part.index == call.index
            )
            function = FunctionAnswer(name=call.name, arguments=arguments)
            yield CallAnswer(id=call.id, type="function", function=function)
