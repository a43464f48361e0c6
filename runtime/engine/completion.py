"""Turn a request's events into text: decode tokens, cut at stop strings, and summarize the end."""

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass

from anespec.runtime.engine.event_stream import Stream
from anespec.runtime.engine.requests import Event, FinishReason, OutputToken, Request
from anespec.runtime.engine.sequences import WaitingRequest
from anespec.runtime.engine.service import Service
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import RowKind
from anespec.runtime.text.stream import StopFilter, StopStrings, StreamDecoder
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError


@dataclass(frozen=True)
class Chunk:
    """The text that one token completed, which may be empty, and the token.

    Text that may be the beginning of a stop string is held back. It comes with the token that shows that it
    is not one, or at the end without a token.
    """

    text: str
    token: OutputToken | None = None

    @property
    def drafted(self) -> bool:
        """Whether a draft row had predicted the token."""
        return self.token is not None and self.token.kind is RowKind.DRAFT


@dataclass(frozen=True)
class Summary:
    """The result of a completion. `text` ends before a stop string; `tokens` include the string's tokens.

    `stop` is the stop string that ended it, None if none did. `given` are the prompt's tokens but the first,
    with their logprobs, if those were wanted.
    """

    prompt_ids: tuple[int, ...]
    tokens: tuple[OutputToken, ...]
    text: str
    finish: FinishReason
    statistics: RequestStats
    stop: str | None = None
    given: tuple[OutputToken, ...] = ()

    @property
    def output_ids(self) -> tuple[int, ...]:
        """The ids of the output tokens."""
        return tuple(token.id for token in self.tokens)


class TextAssembly:
    """A converter of events into chunks of text. It never waits."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stops: StopFilter | Sequence[str] = (),
        shown: Collection[int] = (),
    ) -> None:
        """Begin with no events; `shown` are special tokens to write out in the text.

        Raises:
            RequestError: a stop string is empty.
        """
        # A prompt that was given as ids need not begin as an encoded text does.
        self._decoder = StreamDecoder(tokenizer, continues=True, shown=shown)
        self._stops = StopStrings(stops) if isinstance(stops, Sequence) else stops
        self._prompt = tuple(prompt)
        self._tokens: list[OutputToken] = []
        self._given: list[OutputToken] = []
        self._text: list[str] = []
        self.summary: Summary | None = None

    def push(self, event: Event) -> list[Chunk]:
        """Return the chunks of an event; none once there is a summary.

        Raises:
            AnespecError: the sequence failed.
        """
        chunks: list[Chunk] = []
        for token in event.tokens:
            if self.summary is not None:
                return chunks
            if token.kind is RowKind.PROMPT:
                self._given.append(token)
                chunks.append(Chunk("", token))
                continue
            self._tokens.append(token)
            shown, stopped = self._stops.push(self._decoder.push(token.id))
            chunks.append(self._chunk(shown, token))
            if stopped:
                self._end(FinishReason.STOP, event.statistics)
        if self.summary is not None:
            return chunks
        if event.error is not None:
            raise AnespecError(event.error)
        if event.finish is not None:
            tail, _ = self._stops.push(self._decoder.flush())
            tail += self._stops.flush()
            if tail:
                chunks.append(self._chunk(tail, None))
            stopped = self._stops.found is not None
            self._end(FinishReason.STOP if stopped else event.finish, event.statistics)
        return chunks

    def _chunk(self, text: str, token: OutputToken | None) -> Chunk:
        self._text.append(text)
        return Chunk(text, token)

    def _end(self, finish: FinishReason, statistics: RequestStats) -> None:
        text, tokens, given = "".join(self._text), tuple(self._tokens), tuple(self._given)
        self.summary = Summary(self._prompt, tokens, text, finish, statistics, self._stops.found, given)


class TextStream:
    """The text of one request on a service: iterate with `for` or `async for`, then read `summary`.

    Leaving the iteration early cancels the request.
    """

    def __init__(
        self,
        service: Service,
        tokenizer: Tokenizer,
        request: Request,
        stops: StopFilter | Sequence[str] = (),
        shown: Collection[int] = (),
        sibling: "TextStream | None" = None,
    ) -> None:
        """Make a stream that is not started; `shown` are special tokens to write out in the text.

        `sibling` is a stream of the same request with another seed. If it is prepared first, this request is
        not checked again.

        Raises:
            RequestError: a stop string is empty.
        """
        self._service = service
        self._request = request
        self._sibling = sibling
        self._assembly = TextAssembly(tokenizer, self.prompt_ids, stops, shown)
        self._prepared: WaitingRequest | None = None
        self._stream: Stream | None = None
        self._given_up = False

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The ids of the prompt's tokens."""
        return (*self._request.prompt, *self._request.given)

    def prepare(self) -> None:
        """Check the request now, so that `start` does not check it; raises RequestError as `start` does."""
        if self._prepared is None:
            sibling = self._sibling._prepared if self._sibling is not None else None
            self._prepared = self._service.prepare(self._request, sibling)

    def start(self) -> None:
        """Queue the request now, so that it runs concurrently with others.

        Raises:
            RequestError: the prompt cannot be served.
            QueueFullError: the limit of waiting requests is reached.
            ClosedError: the service is closed.
        """
        start_together([self])

    def cancel(self) -> None:
        """Cancel the rest of the request, even while it is being started; iterations then end."""
        self._given_up = True
        if self._stream is not None:
            self._stream.cancel()

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the text as it comes.

        Raises:
            RequestError: the prompt cannot be served.
            AnespecError: the service is closed, or the sequence failed.
        """
        stream = self._begun()
        with stream:
            for event in stream:
                yield from self._assembly.push(event)
                if self._assembly.summary is not None:
                    return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Yield the text without blocking the event loop; raises as `__iter__` does."""
        stream = self._begun()
        with stream:
            async for event in stream:
                for chunk in self._assembly.push(event):
                    yield chunk
                if self._assembly.summary is not None:
                    return

    @property
    def summary(self) -> Summary:
        """The result of the completion; this waits for the rest of it.

        Raises:
            RequestError: the prompt cannot be served.
            AnespecError: the service is closed, or the sequence failed.
        """
        if self._assembly.summary is None:
            for _ in self:
                pass
        if self._assembly.summary is None:
            raise AnespecError("the completion was cancelled before its end")
        return self._assembly.summary

    def _begun(self) -> Stream:
        self.start()
        assert self._stream is not None
        return self._stream


def start_together(runs: Sequence[TextStream]) -> None:
    """Queue the streams of one service that are not started, all of them or none; raises as `start` does."""
    new = [run for run in runs if run._stream is None]
    if not new:
        return
    for run in new:
        run.prepare()
    streams = new[0]._service.begin([run._prepared for run in new if run._prepared is not None])
    for run, stream in zip(new, streams, strict=True):
        run._stream, run._prepared = stream, None
        if run._given_up:
            stream.cancel()
