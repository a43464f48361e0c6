"""From a request for text to its response, the same way for all APIs: each says only how it is written."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anespec.runtime.engine.completion import Chunk, Summary, TextStream, start_together
from anespec.runtime.engine.requests import FinishReason
from anespec.runtime.server.answers.leasing import lease
from anespec.runtime.server.http.endpoint import Call
from anespec.runtime.server.http.errors import ApiError, api_error, ending, out_of_time
from anespec.runtime.server.http.request_log import record_of
from anespec.runtime.server.http.streams import event_stream, json_answer, while_connected
from anespec.runtime.server.models import Leased


class Generation:
    """Several runs beside one another. Leaving an `async with` block gives up what is left of them.

    Iterate once, for pairs of a run's number and a chunk of it, in the order in which they come; afterwards
    there are `summaries`.
    """

    def __init__(self, runs: Sequence[TextStream]) -> None:
        """Nothing is begun yet."""
        self._runs = tuple(runs)

    async def __aenter__(self) -> Self:
        """Begin all runs, or none.

        Raises:
            QueueFullError: too many wait already.
            RequestError: the prompt cannot be served.
            ClosedError: the model is being closed.
        """
        try:
            # A grammar is prepared in another process, which takes a while.
            await asyncio.to_thread(start_together, self._runs)
        except BaseException:
            self.cancel()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Give up what is left."""
        for run in self._runs:
            run.cancel()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Chunk]]:
        """The chunks of all runs. Raises AnespecError where one failed."""
        if len(self._runs) == 1:
            async for chunk in self._runs[0]:
                yield 0, chunk
            return
        arrived: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue()

        async def follow(number: int, run: TextStream) -> None:
            try:
                async for chunk in run:
                    arrived.put_nowait((number, chunk))
                arrived.put_nowait(None)
            except Exception as error:
                arrived.put_nowait(error)

        tasks = [asyncio.create_task(follow(*pair)) for pair in enumerate(self._runs)]
        try:
            left = len(tasks)
            while left:
                item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait(self) -> tuple[Summary, ...]:
        """The summaries, once all runs have ended. Raises AnespecError where one failed."""
        async for _ in self:
            pass
        return self.summaries

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """How the runs ended; valid after the chunks were read."""
        return tuple(run.summary for run in self._runs)


_log = logging.getLogger("anespec.serve")


class Writer(Protocol):
    """How an API writes an answer: either `whole`, or `begin`, `chunk` by chunk, then `end` or `failed`.

    Runs are told apart by their number. One writer writes one answer.
    """

    def begin(self) -> Iterable[bytes]:
        """Return the first parts of a stream."""
        ...

    def chunk(self, run: int, chunk: Chunk) -> Iterable[bytes]:
        """Return the parts of a stream for a chunk."""
        ...

    def end(self, summaries: Sequence[Summary]) -> Iterable[bytes]:
        """Return the last parts of a stream."""
        ...

    def failed(self, error: ApiError) -> Iterable[bytes]:
        """Return the last parts of a stream that failed."""
        ...

    def whole(self, summaries: Sequence[Summary]) -> BaseModel:
        """The answer at once; never asked of a writer that wrote something of a stream."""
        ...


@dataclass(frozen=True)
class Prepared:
    """Runs that are not begun, and the writer of their answers."""

    runs: Sequence[TextStream]
    writer: Writer


async def answer(
    call: Call[Any],
    name: str | None,
    prepare: Callable[[Leased], Prepared],
    stream: bool,
    send: Callable[[AsyncIterator[bytes]], Response] = event_stream,
    runs: int = 1,
) -> Response:
    """Answer a request by the model `name`, None for the default: at once, or as a stream that `send` sends.

    `prepare` is called in a thread, since templates and long prompts take time, and only where there is room
    for as many `runs` as it gives.

    Raises:
        ApiError, AnespecError: it cannot be served; nothing was sent.
    """
    call.share.pause()
    async with AsyncExitStack() as held:
        leased = await held.enter_async_context(lease(call, name, runs))
        try:
            async with asyncio.timeout(call.caller.seconds), AsyncExitStack() as preparing:
                turn = call.daemon.preparations.turn(leased, call.caller, call.size, runs)
                await call.share.wait_for(preparing.enter_async_context(turn))
                await call.share.turn()
                prepared = await asyncio.to_thread(prepare, leased)
                generation = await held.enter_async_context(Generation(prepared.runs))
                call.share.pause()
        except TimeoutError:
            raise out_of_time() from None
        if stream:
            parts = _parts(call, leased, generation, prepared.writer)
            return _Holding(send(parts), held.pop_all())
        summaries = await while_connected(call.request, generation.wait())
        _require_ended(summaries)
        _count(call, leased, summaries)
        await call.share.turn()
        return json_answer(prepared.writer.whole(summaries))


async def _parts(
    call: Call[Any], leased: Leased, generation: Generation, writer: Writer
) -> AsyncIterator[bytes]:
    try:
        for part in writer.begin():
            yield part
        async for run, chunk in generation:
            await call.share.turn()
            written = [*writer.chunk(run, chunk)]
            call.share.pause()
            for part in written:
                yield part
        summaries = generation.summaries
        _require_ended(summaries)
        _count(call, leased, summaries)
        for part in writer.end(summaries):
            yield part
    except Exception as error:
        refused = api_error(error)
        if refused.status == 500:
            _log.exception("a stream of %s failed", record_of(call.request.scope).endpoint)
        for part in writer.failed(refused):
            yield part


def _require_ended(summaries: Sequence[Summary]) -> None:
    """Raise ApiError where the daemon ended before the answer did, or its time was over before it began."""
    if any(summary.finish is FinishReason.CANCELLED for summary in summaries):
        raise ending()
    if all(summary.finish is FinishReason.TIME and not summary.tokens for summary in summaries):
        raise out_of_time()


def _count(call: Call[Any], leased: Leased, summaries: Sequence[Summary]) -> None:
    for summary in summaries:
        call.daemon.metrics.finished(leased.id, summary, call.caller.tenant)
    record = record_of(call.request.scope)
    record.answered(leased.id, summaries)
    if call.daemon.options.log_text:
        record.said(leased.model.tokenizer, summaries)


class _Holding(Response):
    """A response during which something is held, such as a model; given back also where it never begins."""

    def __init__(self, response: Response, held: AsyncExitStack) -> None:
        self._response = response
        self._held = held
        self.status_code = response.status_code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._held:
            await self._response(scope, receive, send)
