"""One thread that owns an engine, for any number of clients.

Clients hand in requests and cancellations, and read streams of events. Only the thread uses the engine, and
it never waits for a client: it runs at the speed of passes, however slowly clients read.
"""

import contextlib
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.event_stream import Stream
from anespec.runtime.engine.load import ServiceLoad
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.room import QueueLimit
from anespec.runtime.engine.sequences import WaitingRequest
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.pass_costs import CostModel
from anespec.system.errors import AnespecError

T = TypeVar("T")

_log = logging.getLogger(__name__)

MOST_FAILURES = 2
"""So many steps in a row may fail before the sequences that run are given up; a step can be tried again."""


class ClosedError(AnespecError):
    """The service takes no more requests."""


@dataclass(frozen=True)
class _Client:
    """Whose request it is, and the stream that its events go to."""

    tenant: str
    stream: Stream


class Service:
    """Runs an engine on a thread of its own until it is closed. Safe for use from several threads."""

    def __init__(
        self,
        engine: Engine,
        queue: int | None = None,
        on_busy: Callable[[bool], None] = lambda busy: None,
        make_way: Callable[[Callable[[], None]], None] = lambda before: None,
    ) -> None:
        """No other code may use the engine from now on.

        At most `queue` requests of a tenant wait; None is no limit. `on_busy` is called in the service's
        thread, before passes begin to run and after they have ended. `make_way` is called there before each
        pass and may take a while; it first calls its argument, which delivers the events so far.
        """
        self._engine = engine
        self._room = QueueLimit(engine.capacity, queue, engine.running)
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._reason = FinishReason.CANCELLED
        self._clients: dict[int, _Client] = {}
        self._unpublished: list[Event] = []
        self._failures = 0
        self._refusal: AnespecError | None = None
        self._on_busy = on_busy
        self._make_way = make_way
        self._was_busy = False
        self._thread = threading.Thread(target=self._run, name="anespec engine", daemon=True)
        self._thread.start()

    @property
    def shape(self) -> VerifierShape:
        """The verifier's sizes."""
        return self._engine.shape

    @property
    def load(self) -> ServiceLoad:
        """The current load and the counts so far. It never blocks."""
        engine, counts = self._engine, self._engine.counts
        return ServiceLoad(
            waiting=self._room.waiting,
            active=engine.active,
            sequences=engine.capacity,
            passes=counts.passes,
            rows=counts.rows,
            accepted=counts.accepted,
            last_rows=counts.last_rows,
            last_width=counts.last_width,
            states_lost=counts.states_lost,
            pools=engine.pools,
        )

    def load_of(self, tenant: str) -> ServiceLoad:
        """How much of a tenant's there is to do and was done; of others, and of what all share, nothing."""
        counts = self._engine.counts_of.of(tenant)
        return ServiceLoad(
            waiting=self._room.waiting_of(tenant),
            active=self._engine.running(tenant),
            sequences=self._engine.capacity,
            passes=counts.passes,
            rows=counts.rows,
            accepted=counts.accepted,
        )

    def require_room(self, tenant: str = "", ahead: int = 0, count: int = 1) -> None:
        """Do nothing where `count` more of a tenant's requests can be taken, with `ahead` before them.

        Raises:
            AnespecError: the one of `refuse`.
            RequestError: so many can never wait.
            QueueFullError: there is no room for all of them now.
        """
        if self._refusal is not None:
            raise self._refusal
        self._room.require_possible(count)
        self._room.require(Counter({tenant: ahead + count}))

    def check(self, request: Request) -> None:
        """Raise the RequestError, or the error of `refuse`, that submitting the request would raise."""
        if self._refusal is not None:
            raise self._refusal
        self._engine.prepare(request)

    def prepare(self, request: Request, alike: WaitingRequest | None = None) -> WaitingRequest:
        """A request that is checked and ready to be begun, once; see Engine.prepare for `alike`.

        Raises RequestError like `submit`.
        """
        return self._engine.prepare(request, alike)

    def submit(self, request: Request) -> Stream:
        """Queue a request; the stream of its events.

        Raises:
            RequestError: the engine cannot serve it (see Engine.prepare).
            QueueFullError: as many requests of its tenant wait as may.
            ClosedError: the service was closed.
        """
        self.require_room(request.tenant)
        (stream,) = self.begin([self.prepare(request)])
        return stream

    def begin(self, prepared: Sequence[WaitingRequest]) -> list[Stream]:
        """Queue requests, all of them or none; the streams of their events.

        Raises:
            RequestError: so many can never wait.
            QueueFullError: there is no room for all of them now.
            ClosedError: the service was closed.
            AnespecError: the one of `refuse`.
        """
        streams = [Stream(waiting.number, self._cancel) for waiting in prepared]
        tenants = [waiting.request.tenant for waiting in prepared]

        def take() -> None:
            if self._refusal is not None:
                raise self._refusal
            self._room.take(Counter(tenants))
            for waiting, tenant, stream in zip(prepared, tenants, streams, strict=True):
                waiting.since = self._engine.clock()
                self._clients[waiting.number] = _Client(tenant, stream)

        def enqueue() -> None:
            for waiting in prepared:
                self._engine.enqueue(waiting)

        self._require(self._command(enqueue, take))
        return streams

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

        self._require(self._command(answer))
        return done.result()

    def use(self, proven: Proven, costs: CostModel | None = None) -> None:
        """Use what was proven meanwhile, between two passes; see Engine.use.

        Raises:
            ClosedError: the service was closed.
        """

        def take_up(engine: Engine) -> None:
            engine.use(proven, costs)
            with self._wake:
                self._room.widen(engine.capacity)

        self.call(take_up)

    def refuse(self, error: AnespecError) -> None:
        """End all running and waiting requests as FAILED, with this error, and raise it for later
        requests."""

        def end() -> None:
            for number in tuple(self._clients):
                last = self._engine.cancel(number, FinishReason.FAILED)
                if last is not None and last.finish is FinishReason.FAILED:
                    self._note([replace(last, error=last.error or str(error))])
                else:
                    self._note([last])

        with self._wake:
            self._refusal = error
        self._command(end)

    def close(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End what is left for this reason, and wait for the thread; the caller closes verifier and source.

        Every stream gets its last event.
        """
        with self._wake:
            if not self._closing:
                self._closing, self._reason = True, reason
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

    def _require(self, obeyed: bool) -> None:
        if not obeyed:
            raise ClosedError("the service is closed; open the model again")

    def _command(self, command: Callable[[], None], first: Callable[[], None] | None = None) -> bool:
        """Have the engine's thread do something between two steps; False where it does nothing any more.

        `first` is done at once, before any other command or its events; where it raises, nothing is done.
        A process that was forked has a copy of the engine, but not its thread.
        """
        if not self._thread.is_alive():
            return False
        with self._wake:
            if self._closing:
                return False
            if first is not None:
                first()
            self._commands.append(command)
            self._wake.notify()
            return True

    def _run(self) -> None:
        try:
            while self._obey():
                if self._engine.busy and self._hold():
                    continue
                self._tell_busy(self._engine.busy)
                if self._engine.busy:
                    self._make_way(self._publish)
                    self._step()
                if not self._engine.busy:
                    self._publish()
                    self._tell_busy(False)
            self._note(self._engine.cancel(number, self._reason) for number in tuple(self._clients))
            self._publish()
            self._engine.close()
        except BaseException as error:
            # Such as SystemExit out of a draft source. Clients would wait for ever.
            _log.exception("the engine's thread ends")
            self._give_up(_sentence(error))
        finally:
            self._tell_busy(False)

    def _hold(self) -> bool:
        """Wait where a request that may come now goes before those that wait; whether something came."""
        seconds = self._engine.hold_seconds
        if not seconds:
            return False
        # Who hears that an answer has ended asks for the next one.
        self._publish()
        with self._wake:
            return self._wake.wait_for(lambda: bool(self._commands) or self._closing, seconds)

    def _tell_busy(self, busy: bool) -> None:
        if busy is not self._was_busy:
            self._was_busy = busy
            self._on_busy(busy)

    def _give_up(self, reason: str) -> None:
        """Fail all callers that wait for the thread, or are about to."""
        with self._wake:
            self._closing = True
            commands, self._commands = self._commands, deque()
        for command in commands:
            with contextlib.suppress(Exception):
                command()
        for number, client in self._clients.items():
            client.stream.put(Event(number, RequestStats(0), finish=FinishReason.FAILED, error=reason))
        self._clients.clear()

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
            client = self._clients[event.sequence]
            if event.finish is not None:
                self._leave(client, event)
            client.stream.put(event)

    def _leave(self, client: _Client, last: Event) -> None:
        with self._wake:
            del self._clients[last.sequence]
            self._room.leave(client.tenant, last.statistics.prefill_seconds + last.statistics.decode_seconds)


def _sentence(error: BaseException) -> str:
    if isinstance(error, AnespecError):
        return str(error)
    return f"the model could not be run: {error!r}; validate the artifact"
