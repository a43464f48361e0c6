"""How `/v1/chat/completions` writes answers."""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from anespec.runtime.completion import Chunk, Summary
from anespec.runtime.requests import OutputToken
from anespec.runtime.server.conversing import Begun
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.openai.chat_answer import (
    CallAnswer,
    ChatAnswer,
    ChatChoice,
    ChatFinish,
    ChatLogprobs,
    ChatPart,
    FunctionAnswer,
    MessageAnswer,
    PartChoice,
    TokenOrigin,
    logprobs_of,
)
from anespec.runtime.server.openai.finish import finish_reason
from anespec.runtime.server.openai.usage import Usage, timings_of, usage_of
from anespec.runtime.server.parts import AnswerPart, Argued, Called, Said, Thought
from anespec.runtime.server.reading import AnswerReader
from anespec.runtime.server.streams import DONE, event
from anespec.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Wanted:
    """The data that a client requests in addition to the text."""

    logprobs: bool = False
    usage: bool = False
    origins: bool = False


@dataclass
class _Choice:
    """One answer while it comes, and its tokens that no event has told of."""

    reader: AnswerReader
    untold: list[OutputToken] = field(default_factory=list)
    calls: int = 0


class ChatWriter:
    """Writes the answers to one request."""

    def __init__(self, model: str, tokenizer: Tokenizer, begun: Begun, wanted: Wanted) -> None:
        """Of the runs that have `begun`."""
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._reading = begun.reading
        self._left_out = begun.left_out
        self._wanted = wanted
        self._choices = [_Choice(begun.reading.reader()) for _ in begun.runs]

    def begin(self) -> Iterable[bytes]:
        """Each answer's role."""
        for number in range(len(self._choices)):
            first = MessageAnswer(role="assistant", content=None if self._reading.calls else "")
            told = self._part(PartChoice(index=number, delta=first, finish_reason=None))
            if self._left_out:
                told.truncated_messages = self._left_out
            yield event(told)

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        """Return the message's changes by a text."""
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
            told = self._part(last)
            told.timings = timings_of(summary)
            yield event(told)
        if self._wanted.usage:
            told = self._part()
            told.usage = self._usage(summaries)
            yield event(told)
        yield DONE

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """OpenAI's error object."""
        yield event(error.answer())

    def whole(self, summaries: Sequence[Summary]) -> ChatAnswer:
        """All answers at once."""
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
            case Thought(text):
                delta = MessageAnswer(reasoning_content=text)
            case Said(text):
                delta = MessageAnswer(content=text)
            case Called(index, id, name):
                self._choices[run].calls += 1
                function = FunctionAnswer(name=name, arguments="")
                delta = MessageAnswer(
                    tool_calls=(CallAnswer(index=index, id=id, type="function", function=function),)
                )
            case Argued(index, text):
                call = CallAnswer(index=index, function=FunctionAnswer(arguments=text))
                delta = MessageAnswer(tool_calls=(call,))
        return event(self._part(self._choice(run, delta)))

    def _choice(self, run: int, delta: MessageAnswer) -> PartChoice:
        """Return the new parts, with the requested data on the tokens since the last time."""
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
    """A message of all its parts."""
    said = "".join(part.text for part in parts if isinstance(part, Said))
    thought = "".join(part.text for part in parts if isinstance(part, Thought))
    calls = tuple(_calls(parts))
    message = MessageAnswer(role="assistant", content=said if said or not calls else None, refusal=None)
    if thought:
        message.reasoning_content = thought
    if calls:
        message.tool_calls = calls
    return message


def _calls(parts: Iterable[AnswerPart]) -> Iterator[CallAnswer]:
    for call in parts:
        if isinstance(call, Called):
            arguments = "".join(
                part.text for part in parts if isinstance(part, Argued) and part.index == call.index
            )
            function = FunctionAnswer(name=call.name, arguments=arguments)
            yield CallAnswer(id=call.id, type="function", function=function)
