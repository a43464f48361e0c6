"""One prompt to text: an engine's events decoded, cut at stop strings, and summed up at the end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anespec.manifests.errors import AnespecError
from anespec.runtime.engine import Engine
from anespec.runtime.passes import RowKind
from anespec.runtime.requests import Event, FinishReason, Request, Statistics
from anespec.runtime.text.stream import StopStrings, StreamDecoder
from anespec.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Chunk:
    """Text that one token completed; `drafted` where a draft row had guessed the token."""

    text: str
    drafted: bool


@dataclass(frozen=True)
class Summary:
    """How a completion ended. `text` ends before a stop string; `output_ids` has its tokens too."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish: FinishReason
    statistics: Statistics


class Completion:
    """Runs one request on an idle engine. Iterate over it for the text, then ask for `summary`."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, request: Request, stops: Sequence[str] = ()
    ) -> None:
        """Nothing runs before the first chunk is asked for."""
        self.engine = engine
        self.request = request
        # An artifact's tokens are the tokenizer's, but a prompt of ids need not begin like a text does.
        self.decoder = StreamDecoder(tokenizer, continues=True)
        self.stops = StopStrings(stops)
        self._ids: list[int] = []
        self._text: list[str] = []
        self._end: tuple[FinishReason, Statistics] | None = None
        self._statistics = Statistics(len(request.prompt))
        self._cancelled = False

    def cancel(self) -> None:
        """Give up what is left, after the pass that runs now; whoever iterates sees the end."""
        self._cancelled = True

    def __iter__(self) -> Iterator[Chunk]:
        """The text as it comes.

        Raises:
            RequestError: the prompt cannot be served.
            AnespecError: the model's output is not a number.
        """
        number = self.engine.submit(self.request)
        try:
            while self._end is None:
                if self._cancelled:
                    self._end = (FinishReason.CANCELLED, self._statistics)
                    return
                for event in self.engine.step():
                    if event.sequence == number:
                        yield from self._take(event)
        finally:
            self.engine.cancel(number)

    def _take(self, event: Event) -> Iterator[Chunk]:
        self._statistics = event.statistics
        for token in event.tokens:
            self._ids.append(token.id)
            shown, stopped = self.stops.push(self.decoder.push(token.id))
            if shown:
                yield self._chunk(shown, token.kind is RowKind.DRAFT)
            if stopped:
                self._end = (FinishReason.STOP, event.statistics)
                return
        if event.error is not None:
            raise AnespecError(event.error)
        if event.finish is not None:
            tail, stopped = self.stops.push(self.decoder.flush())
            tail += self.stops.flush()
            if tail:
                yield self._chunk(tail, False)
            self._end = (FinishReason.STOP if stopped else event.finish, event.statistics)

    def _chunk(self, text: str, drafted: bool) -> Chunk:
        self._text.append(text)
        return Chunk(text, drafted)

    @property
    def summary(self) -> Summary:
        """How it ended; runs what is left to run first."""
        if self._end is None:
            for _ in self:
                pass
        assert self._end is not None
        finish, statistics = self._end
        return Summary(tuple(self.request.prompt), tuple(self._ids), "".join(self._text), finish, statistics)
