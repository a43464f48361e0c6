"""Pass a request's events from the engine's thread to a reader in another thread or in asyncio."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Self

from anespec.runtime.engine.requests import Event, FinishReason

Cancel = Callable[[int, FinishReason], None]


class Stream:
    """The events of one sequence; each is returned once, and the last one has a finish reason.

    Iterate with `for` or `async for`. Events are kept until they are read, so a slow reader delays no other
    client. Leaving a `with` block cancels the rest of the sequence. Safe for use from several threads.
    """

    def __init__(self, number: int, cancel: Cancel) -> None:
        """Begin without events; `cancel(number, reason)` asks the engine's thread to end the sequence."""
        self._number = number
        self._cancel = cancel
        self._events: deque[Event] = deque()
        self._ended = False
        self._changed = threading.Condition()
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def number(self) -> int:
        """The sequence's number."""
        return self._number

    @property
    def ended(self) -> bool:
        """Whether the last event was put here, even if it is not yet read."""
        return self._ended

    def cancel(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Ask the engine to end the sequence; its last event still comes. Do nothing if it has ended."""
        if not self._ended:
            self._cancel(self._number, reason)

    def put(self, event: Event) -> None:
        """Add an event; only the engine's thread calls this."""
        with self._changed:
            self._events.append(event)
            self._ended = event.finish is not None
            self._changed.notify_all()
            sleepers, self._sleepers = self._sleepers, []
        for loop, sleeper in sleepers:
            # A loop that was closed meanwhile has no waiting task.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, sleeper)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        with self._changed:
            while not self._events:
                if self._ended:
                    raise StopIteration
                self._changed.wait()
            return self._events.popleft()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            with self._changed:
                if self._events:
                    return self._events.popleft()
                if self._ended:
                    raise StopAsyncIteration
                loop = asyncio.get_running_loop()
                sleeper = loop.create_future()
                self._sleepers.append((loop, sleeper))
            await sleeper

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)
