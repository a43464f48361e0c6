"""The answers to a request as they are generated, for every API."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from anespec.runtime.engine.completion import Chunk, Summary, TextStream, start_together


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
