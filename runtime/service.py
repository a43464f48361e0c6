"""One thread that owns an engine, for any number of clients.

Clients hand in requests and cancellations, and read streams of events. Nobody but the thread touches the
engine, and the thread waits for nobody: it goes on as fast as passes run, however slowly clients read.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from anespec.manifests.errors import AnespecError, RequestError
from anespec.runtime.engine import Engine
from anespec.runtime.event_stream import Stream
from anespec.runtime.passes import VerifierShape
from anespec.runtime.requests import Event, FinishReason, Request
from anespec.runtime.statistics import Statistics

T = TypeVar("T")

_log = logging.getLogger(__name__)

MOST_FAILURES = 2
"""So many steps in a row may fail before the sequences that run are given up; a step can be tried again."""


class ClosedError(AnespecError):
    """The service takes no more requests."""


class QueueFullError(RequestError):
    """As many requests wait as may; in `retry_after` seconds there may be room."""

    def __init__(self, waiting: int, retry_after: float) -> None:
        super().__init__(f"{waiting} requests wait already, as many as may; try again later")
        self.retry_after = retry_after


@dataclass(frozen=True)
class ServiceLoad:
    """How much a service has to do now: requests that wait, and sequences that run of those that can."""

    waiting: int
    active: int
    sequences: int


class Service:
    """Runs an engine on a thread of its own until it is closed. Safe for use from several threads."""

    def __init__(self, engine: Engine, queue: int | None = None) -> None:
        """Nobody else may use the engine from now on. At most `queue` requests wait; None is no limit."""
        self._engine = engine
        self._queue = queue
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._streams: dict[int, Stream] = {}
        self._unpublished: list[Event] = []
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="anespec engine", daemon=True)
        self._thread.start()

    @property
    def shape(self) -> VerifierShape:
        """The verifier's sizes."""
        return self._engine.shape

    @property
    def load(self) -> ServiceLoad:
        """How much there is to do."""
        active = self._engine.active
        return ServiceLoad(max(0, len(self._streams) - active), active, self._engine.shape.sequences)

    def require_room(self) -> None:
        """Raise QueueFullError where as many requests wait as may."""
        load = self.load
        if self._queue is not None and load.waiting >= self._queue:
            raise QueueFullError(load.waiting, 1.0)

    def check(self, request: Request) -> None:
        """Raise the RequestError that submitting the request would raise."""
        self._engine.prepare(request)

    def submit(self, request: Request) -> Stream:
        """Queue a request; the stream of its events.

        Raises:
            RequestError: the engine cannot serve it (see Engine.prepare).
            QueueFullError: as many requests wait as may.
            ClosedError: the service was closed.
        """
        self.require_room()
        waiting = self._engine.prepare(request)
        stream = Stream(waiting.number, self._cancel)

        def begin() -> None:
            self._streams[waiting.number] = stream
            self._engine.enqueue(waiting)

        if not self._command(begin):
            raise ClosedError("the service is closed; open the model again")
        return stream

    def call(self, work: Callable[[Engine], T]) -> T:
        """Have the engine's thread do something between two steps; what it returned, or what it raised.

        Raises:
            ClosedError: the service was closed.
        """
        done: Future[T] = Future()

        def answer() -> None:
            try:
                done.set_result(work(self._engine))
            except Exception as error:
                done.set_exception(error)

        if not self._command(answer):
            raise ClosedError("the service is closed; open the model again")
        return done.result()

    def close(self) -> None:
        """End all streams with CANCELLED, and wait for the thread; verifier and source stay their owner's."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cancel(self, number: int, reason: FinishReason) -> None:
        self._command(lambda: self._note([self._engine.cancel(number, reason)]))

    def _command(self, command: Callable[[], None]) -> bool:
        """Have the engine's thread do something between two steps; False where it does nothing any more.

        A process that was forked has a copy of the engine, but not its thread.
        """
        if not self._thread.is_alive():
            return False
        with self._wake:
            if self._closing:
                return False
            self._commands.append(command)
            self._wake.notify()
            return True

    def _run(self) -> None:
        try:
            while self._obey():
                if self._engine.busy:
                    self._step()
                if not self._engine.busy:
                    self._publish()
            self._note(self._engine.cancel(number, FinishReason.CANCELLED) for number in tuple(self._streams))
            self._publish()
            self._engine.close()
        except BaseException as error:
            # Such as SystemExit out of a draft source. Clients would wait for ever.
            _log.exception("the engine's thread ends")
            self._give_up(_sentence(error))

    def _give_up(self, reason: str) -> None:
        """Fail whoever waits for the thread, or is about to."""
        with self._wake:
            self._closing = True
            commands, self._commands = self._commands, deque()
        for command in commands:
            with contextlib.suppress(Exception):
                command()
        for number, stream in self._streams.items():
            stream.put(Event(number, Statistics(0), finish=FinishReason.FAILED, error=reason))

    def _obey(self) -> bool:
        """Do what clients asked for, waiting where there is nothing else to do; False when closing."""
        with self._wake:
            while not (self._commands or self._closing or self._engine.busy or self._unpublished):
                self._wake.wait()
            commands, self._commands = self._commands, deque()
            closing = self._closing
        for command in commands:
            command()
        return not closing

    def _step(self) -> None:
        """One step of the engine. The last step's events are handed out once the next pass is planned, so
        that clients work on them while it runs."""
        try:
            self._note(self._engine.step(self._publish))
            self._failures = 0
        except Exception as error:
            self._failures += 1
            _log.exception("a step of the engine failed")
            self._publish()
            if self._failures >= MOST_FAILURES:
                self._failures = 0
                self._note(self._engine.abandon(_sentence(error)))

    def _note(self, events: Iterable[Event | None]) -> None:
        self._unpublished += [event for event in events if event is not None]

    def _publish(self) -> None:
        """Hand out what has happened, to each stream its own."""
        events, self._unpublished = self._unpublished, []
        for event in events:
            stream = self._streams[event.sequence]
            if event.finish is not None:
                del self._streams[event.sequence]
            stream.put(event)


def _sentence(error: BaseException) -> str:
    if isinstance(error, AnespecError):
        return str(error)
    return f"the model could not be run: {error!r}; validate the artifact"
