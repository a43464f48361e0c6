"""Serve any number of clients with one engine, on a thread of its own.

Clients submit requests and cancellations, and read streams of events. Only this thread uses the engine. It
never waits for a client, so a client that reads slowly does not delay passes.
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
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.room import QueueLimit
from anespec.runtime.engine.sequences import WaitingRequest
from anespec.runtime.engine.statistics import RequestStats, ServiceLoad
from anespec.runtime.passes import VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.pass_costs import CostModel
from anespec.system.errors import AnespecError

T = TypeVar("T")

_log = logging.getLogger(__name__)

MAX_FAILURES = 2
"""Failed steps in a row after which the running sequences end as FAILED; before, a step is tried again."""


class ClosedError(AnespecError):
    """The service is closed and takes no more requests."""


@dataclass(frozen=True)
class _Client:
    """The tenant of a request, and the stream that gets its events."""

    tenant: str
    stream: Stream


class Service:
    """A thread that runs an engine until it is closed. Safe for use from several threads."""

    def __init__(
        self,
        engine: Engine,
        queue: int | None = None,
        on_busy: Callable[[bool], None] = lambda busy: None,
        make_way: Callable[[Callable[[], None]], None] = lambda before: None,
    ) -> None:
        """Start the thread; no other code may use the engine from now on.

        At most `queue` requests of a tenant wait; None is no limit. `on_busy` is called in the service's
        thread, with True before passes begin to run and with False after they have ended. `make_way` is
        called there before each pass, so that other work can run first. Its argument delivers the events so
        far; a `make_way` that takes long calls it first.
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
        """The current load and the counts so far. Reading it never blocks."""
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
        """Return the load and the counts of one tenant's requests, without figures of other tenants."""
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
        """Check that `count` further requests of a tenant can be taken, with `ahead` others before them.

        Raises:
            AnespecError: the service refuses all requests with this error (see `refuse`).
            RequestError: there are more than can ever run or wait.
            QueueFullError: they cannot all be taken now.
        """
        if self._refusal is not None:
            raise self._refusal
        self._room.require_possible(count)
        self._room.require(Counter({tenant: ahead + count}))

    def check(self, request: Request) -> None:
        """Check a request without submitting it.

        Raises:
            RequestError: the engine cannot serve it.
            AnespecError: the service refuses all requests with this error (see `refuse`).
        """
        if self._refusal is not None:
            raise self._refusal
        self._engine.prepare(request)

    def prepare(self, request: Request, sibling: WaitingRequest | None = None) -> WaitingRequest:
        """Check a request and return it ready for `begin`, which may take it once.

        For `sibling` see Engine.prepare. Raises RequestError as `submit` does.
        """
        return self._engine.prepare(request, sibling)

    def submit(self, request: Request) -> Stream:
        """Queue a request; return the stream of its events.

        Raises:
            RequestError: the engine cannot serve it (see Engine.prepare).
            QueueFullError: the limit of its tenant's waiting requests is reached.
            ClosedError: the service was closed.
        """
        self.require_room(request.tenant)
        (stream,) = self.begin([self.prepare(request)])
        return stream

    def begin(self, prepared: Sequence[WaitingRequest]) -> list[Stream]:
        """Queue requests, all of them or none; return the streams of their events.

        Raises:
            RequestError: there are more than can ever run or wait.
            QueueFullError: they cannot all be taken now.
            ClosedError: the service was closed.
            AnespecError: the service refuses all requests with this error (see `refuse`).
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
        """Run `work` on the engine's thread between two steps; return its result or raise its error.

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
        """Use newly proven features and costs from the next pass on; see Engine.use.

        Raises:
            ClosedError: the service was closed.
        """

        def take_up(engine: Engine) -> None:
            engine.use(proven, costs)
            with self._wake:
                self._room.widen(engine.capacity)

        self.call(take_up)

    def refuse(self, error: AnespecError) -> None:
        """End all running and waiting requests as FAILED with this error, and raise it for later ones."""

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
        """End all requests with this reason, and wait for the thread; every stream gets its last event.

        The caller closes the verifier and the draft source.
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

    def _require(self, was_queued: bool) -> None:
        if not was_queued:
            raise ClosedError("the service is closed; open the model again")

    def _command(self, command: Callable[[], None], first: Callable[[], None] | None = None) -> bool:
        """Queue a command for the engine's thread; return False if the thread has ended or is closing.

        `first` runs at once in the caller's thread, before any other command; if it raises, nothing is
        queued. A forked process has a copy of the engine, but not its thread.
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
            while self._run_commands():
                if self._engine.busy and self._hold():
                    continue
                self._report_busy(self._engine.busy)
                if self._engine.busy:
                    self._make_way(self._publish)
                    self._step()
                if not self._engine.busy:
                    self._publish()
                    self._report_busy(False)
            self._note(self._engine.cancel(number, self._reason) for number in tuple(self._clients))
            self._publish()
            self._engine.close()
        except BaseException as error:
            # This includes SystemExit out of a draft source. Without this, clients would wait for ever.
            _log.exception("the engine's thread failed; all requests end")
            self._give_up(_sentence(error))
        finally:
            self._report_busy(False)

    def _hold(self) -> bool:
        """Wait for requests that should begin before or with the waiting ones; return whether one came."""
        seconds = self._engine.hold_seconds
        if not seconds:
            return False
        # A client that gets the end of an answer may send its next request.
        self._publish()
        with self._wake:
            return self._wake.wait_for(lambda: bool(self._commands) or self._closing, seconds)

    def _report_busy(self, busy: bool) -> None:
        if busy is not self._was_busy:
            self._was_busy = busy
            self._on_busy(busy)

    def _give_up(self, reason: str) -> None:
        """End the requests of all callers that wait for this thread, and refuse later ones."""
        with self._wake:
            self._closing = True
            commands, self._commands = self._commands, deque()
        for command in commands:
            with contextlib.suppress(Exception):
                command()
        for number, client in self._clients.items():
            client.stream.put(Event(number, RequestStats(0), finish=FinishReason.FAILED, error=reason))
        self._clients.clear()

    def _run_commands(self) -> bool:
        """Run the clients' commands, after waiting for one if the engine is idle; return False on closing."""
        with self._wake:
            while not (self._commands or self._closing or self._engine.busy or self._unpublished):
                self._wake.wait()
            commands, self._commands = self._commands, deque()
            closing = self._closing
        for command in commands:
            command()
        return not closing

    def _step(self) -> None:
        """Run one step of the engine. The events of the step before are published once the next pass runs,
        so that clients work on them during the pass."""
        try:
            self._note(self._engine.step(self._publish))
            self._failures = 0
        except Exception as error:
            self._failures += 1
            _log.exception("a step of the engine failed")
            self._publish()
            if self._failures >= MAX_FAILURES:
                self._failures = 0
                self._note(self._engine.abandon(_sentence(error)))

    def _note(self, events: Iterable[Event | None]) -> None:
        self._unpublished += [event for event in events if event is not None]

    def _publish(self) -> None:
        """Put each unpublished event into its stream."""
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
