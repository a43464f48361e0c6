"""The runs of a prompt, for the library and every API of the daemon."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from anespec.runtime.engine.completion import Chunk, Summary, TextStream


class Generation:
    """The concurrent runs of a prompt, one for each choice. Leaving its `with` block cancels those that run.

    Iterate over it once, for pairs of a run's number and a chunk, in the order of their arrival.
    """

    def __init__(self, runs: "Sequence[TextStream]") -> None:
        """Take runs that are not started yet."""
        self._runs = tuple(runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.cancel()

    def start(self) -> Self:
        """Start all runs, or none.

        Raises:
            QueueFullError: too many requests wait already.
            RequestError: the prompt cannot be served.
            ClosedError: the model is being closed.
        """
        from anespec.runtime.engine.completion import start_together

        try:
            start_together(self._runs)
        except BaseException:
            self.cancel()
            raise
        return self

    def cancel(self) -> None:
        """Cancel the runs that have not ended."""
        for run in self._runs:
            run.cancel()

    async def __aiter__(self) -> "AsyncIterator[tuple[int, Chunk]]":
        """Yield the chunks of all runs. Raises AnespecError if a run failed."""
        if len(self._runs) == 1:
            async for chunk in self._runs[0]:
                yield 0, chunk
            return
        arrived: asyncio.Queue[tuple[int, Chunk] | Exception | None] = asyncio.Queue()

        async def follow(number: int, run: "TextStream") -> None:
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

    async def wait(self) -> "tuple[Summary, ...]":
        """Wait for all runs and return their summaries. Raises AnespecError if a run failed."""
        async for _ in self:
            pass
        return self.summaries

    @property
    def summaries(self) -> "tuple[Summary, ...]":
        """Wait for the runs that have not ended, and return all summaries; raises as `wait` does."""
        return tuple(run.summary for run in self._runs)
