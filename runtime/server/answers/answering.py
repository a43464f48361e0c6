"""Run the generations of a request and send their response; each API provides only a writer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anespec.runtime.engine.completion import Chunk, Summary, TextStream
from anespec.runtime.engine.generation import Generation
from anespec.runtime.engine.requests import FinishReason
from anespec.runtime.server.answers.leasing import lease
from anespec.runtime.server.http.endpoint import Call
from anespec.runtime.server.http.errors import ApiError, api_error, ending, out_of_time
from anespec.runtime.server.http.request_log import record_of
from anespec.runtime.server.http.streams import event_stream, json_answer, while_connected
from anespec.runtime.server.models import Leased
from anespec.system.errors import LONGER_CONTEXT

_log = logging.getLogger("anespec.serve")


class Writer(Protocol):
    """The writer of one answer in the format of an API.

    The calls are either `whole`, or `begin`, `chunk` for each chunk, then `end` or `failed`. `run` is the
    number of a run.
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
        """Return the whole answer; not called after any method for streams."""
        ...


@dataclass(frozen=True)
class Prepared:
    """Runs that are not started yet, and the writer of their answers."""

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
    """Answer a request with the model `name` (None: the default), whole or as a stream.

    `send` makes the response of a stream. `prepare` is called in a thread, since templates and long prompts
    take time, and only if the queue has room for the `runs` that it returns.

    Raises:
        ApiError, AnespecError: the request cannot be served; nothing was sent.
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
                generation = held.enter_context(Generation(prepared.runs))
                # This may prepare a grammar in another process, which takes a while.
                await asyncio.to_thread(generation.start)
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
        # A long answer with logprobs takes a while to write.
        return await asyncio.to_thread(lambda: json_answer(prepared.writer.whole(summaries)))


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
    """Raise ApiError if the daemon ended before the answer, or the time limit passed before the answer
    began."""
    if any(summary.finish is FinishReason.CANCELLED for summary in summaries):
        raise ending()
    if all(summary.finish is FinishReason.TIME and not summary.tokens for summary in summaries):
        raise out_of_time()


def _count(call: Call[Any], leased: Leased, summaries: Sequence[Summary]) -> None:
    if any(summary.finish is FinishReason.CONTEXT for summary in summaries):
        _say_full(leased.id, leased.model.context)
    for summary in summaries:
        call.daemon.metrics.finished(leased.id, summary, call.caller.tenant)
    record = record_of(call.request.scope)
    record.answered(leased.id, summaries)
    if call.daemon.options.log_text:
        record.said(leased.model.tokenizer, summaries)


@lru_cache(maxsize=256)
def _say_full(model: str, context: int) -> None:
    """Log that a context was filled; the cache lets each be logged once."""
    _log.warning(
        "an answer of %s ended: its context of %d tokens is full; `anespec serve MODEL %s` makes it longer",
        model,
        context,
        LONGER_CONTEXT,
    )


class _Holding(Response):
    """A response that holds resources, such as a model, until it was sent, or was dropped unsent."""

    def __init__(self, response: Response, held: AsyncExitStack) -> None:
        self._response = response
        self._held = held
        self.status_code = response.status_code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._held:
            await self._response(scope, receive, send)
