"""Write answers in Ollama's format."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from starlette.responses import Response

from anespec.runtime.engine.completion import Chunk, Summary, TextStream
from anespec.runtime.engine.requests import OutputToken
from anespec.runtime.options import GenerationOptions
from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import settled
from anespec.runtime.server.answers.leasing import lease
from anespec.runtime.server.answers.reading import AnswerReader
from anespec.runtime.server.http.endpoint import Call
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import json_answer, line, line_stream
from anespec.runtime.server.models import Leased, ServingModel
from anespec.runtime.server.ollama.answers import (
    ChatLine,
    GenerateLine,
    OllamaCall,
    OllamaError,
    OllamaFunction,
    Piece,
)
from anespec.runtime.server.ollama.fields import FILTERS, OllamaBody, known_as
from anespec.runtime.server.openai.chat_answer import logprobs_of
from anespec.runtime.server.parts import (
    AnswerPart,
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import PromptTooLongError

Spell = Callable[[str, Piece], ChatLine | GenerateLine]
"""A function that makes a line from the model's name and a piece of an answer."""


@dataclass
class Clock:
    """The times when a request arrived and when its model was loaded, by `time.monotonic_ns()`."""

    begun: int
    loaded: int = 0

    @classmethod
    def start(cls) -> "Clock":
        """Return the clock of a request that arrives now."""
        return cls(time.monotonic_ns())


class LineWriter:
    """The writer of the answer to a request."""

    def __init__(
        self, model: str, spell: Spell, clock: Clock, reader: AnswerReader | None, logprobs: Tokenizer | None
    ) -> None:
        """`model` is the requested name. Without a `reader` the whole answer is text. `logprobs` is the
        tokenizer for logprobs, None if they are not requested."""
        self._model = model
        self._spell = spell
        self._clock = clock
        self._reader = reader
        self._logprobs = logprobs
        self._unsent: list[OutputToken] = []
        self._calls = _Calls()

    def begin(self) -> Iterable[bytes]:
        """Return nothing: the first line is the first text."""
        return ()

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        """Return a line for each piece."""
        if chunk.token is not None:
            self._unsent.append(chunk.token)
        for piece in self._pieces(self._parts(chunk.text)):
            yield line(self._line(piece))

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        """Return the held-back text, and the counts."""
        for piece in self._rest():
            yield line(self._line(piece))
        yield line(self._last(Piece(), summaries[0]))

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """Return a line with the error."""
        yield line(OllamaError(error=error.sentence))

    def whole(self, summaries: Sequence[Summary]) -> ChatLine | GenerateLine:
        """Return the whole answer."""
        summary = summaries[0]
        pieces = [*self._pieces(self._parts(summary.text)), *self._rest()]
        self._unsent = list(summary.tokens)
        joined = Piece(
            "".join(piece.content for piece in pieces),
            "".join(piece.thinking for piece in pieces),
            [call for piece in pieces for call in piece.calls],
        )
        return self._last(joined, summary)

    def _parts(self, text: str) -> Iterable[AnswerPart]:
        if self._reader is not None:
            return self._reader.push(text)
        return [ContentDelta(text)] if text else []

    def _rest(self) -> Iterator[Piece]:
        yield from self._pieces(self._reader.end() if self._reader is not None else ())
        yield from self._calls.end()

    def _pieces(self, parts: Iterable[AnswerPart]) -> Iterator[Piece]:
        for part in parts:
            match part:
                case ReasoningDelta(text):
                    yield from self._calls.end()
                    yield Piece(thinking=text)
                case ContentDelta(text):
                    yield from self._calls.end()
                    yield Piece(content=text)
                case ToolCallStart(_, id, name):
                    yield from self._calls.end()
                    self._calls.begin(id, name)
                case ToolArgumentsDelta(_, text):
                    self._calls.add(text)

    def _last(self, piece: Piece, summary: Summary) -> ChatLine | GenerateLine:
        found = self._line(piece)
        clock = self._clock
        found.end(summary, time.monotonic_ns() - clock.begun, clock.loaded - clock.begun)
        return found

    def _line(self, piece: Piece) -> ChatLine | GenerateLine:
        found = self._spell(self._model, piece)
        if self._logprobs is not None and self._unsent:
            found.logprobs = logprobs_of(self._unsent, self._logprobs).content
        self._unsent = []
        return found


class _Calls:
    """The collector of an answer's calls, which this API sends whole. An incomplete last call is dropped."""

    def __init__(self) -> None:
        self._count = 0
        self._open: tuple[str, str] | None = None
        self._arguments = ""

    def begin(self, id: str, name: str) -> None:
        self._open, self._arguments = (id, name), ""

    def add(self, text: str) -> None:
        self._arguments += text

    def end(self) -> Iterator[Piece]:
        if self._open is None:
            return
        (id, name), self._open = self._open, None
        try:
            arguments = json.loads(self._arguments or "{}", parse_float=_finite)
        except ValueError:
            return
        function = OllamaFunction(index=self._count, name=name, arguments=arguments)
        self._count += 1
        yield Piece(calls=[OllamaCall(id=id, function=function)])


def _finite(number: str) -> float:
    """Parse a number that JSON can represent. Raises ValueError for one that is too large."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value


# The common parts of Ollama's endpoints for text.

BodyT = TypeVar("BodyT", bound=OllamaBody)

Begin = Callable[[ServingModel, GenerationOptions], tuple[Sequence[TextStream], AnswerReader | None]]
"""A function that returns a model's runs, not started yet, and the reader of the answer (None: all text)."""


async def reply(call: Call[BodyT], spell: Spell, begin: Begin) -> Response:
    """Run what `begin` returns, and send the answer as lines or whole."""
    body, clock = call.body, Clock.start()
    options = body.generation

    def prepare(leased: Leased) -> Prepared:
        clock.loaded = time.monotonic_ns()
        runs, reader = begin(leased.model, settled(options, leased.model, FILTERS))
        logprobs = leased.model.tokenizer if body.logprobs else None
        return Prepared(runs, LineWriter(body.model, spell, clock, reader, logprobs))

    name = known_as(call.daemon.models, body.model)
    try:
        return await answer(call, name, prepare, body.streams, line_stream)
    except PromptTooLongError as error:
        raise ApiError(400, str(error)) from None


async def load(call: Call[BodyT], spell: Spell) -> Response:
    """Load the model, for a request without text."""
    body, clock = call.body, Clock.start()
    if body.keep_alive in (0, "0", "0s", "0m"):
        raise ApiError(
            400, "models are not unloaded on request, but when others need the memory", param="keep_alive"
        )
    async with lease(call, known_as(call.daemon.models, body.model)):
        found = spell(body.model, Piece())
        found.created_at, found.done, found.done_reason = datetime.now(UTC), True, "load"
        found.total_duration = found.load_duration = time.monotonic_ns() - clock.begun
        return json_answer(found)
