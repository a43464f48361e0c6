"""Many clients, one engine: streams, cancellation at any moment, slow readers, failures and the end."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from drafting import OracleSession, SourceOf, oracle_source
from patience import PATIENCE
from stepping import LosingVerifier, SteppedVerifier, stepped_service
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape
from waiting import until

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.event_stream import Stream
from anespec.runtime.engine.next_pass import SequenceRows
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.engine.service import ClosedError, Service
from anespec.runtime.passes import PassPlan, PassResult
from anespec.runtime.sampling import SamplingParameters
from anespec.system.errors import RequestError

SHAPE = toy_shape(sequences=2)


def text(prompt: list[int], count: int) -> list[int]:
    return sequential_text(SHAPE, 0, prompt, count, SamplingParameters())


def check_whole(events: list[Event]) -> None:
    """Exactly one end, at the end."""
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(
        Engine(ToyVerifier(SHAPE), everything(SHAPE), oracle_source([1, 2], text([1, 2], 50)))
    ) as it:
        yield it


@pytest.fixture
def stepped() -> Iterator[tuple[SteppedVerifier, Service]]:
    with stepped_service(SHAPE) as found:
        yield found


def test_many_clients_at_once_get_their_own_texts(service: Service) -> None:
    prompts = [[i % 12, (5 * i) % 12] for i in range(20)]
    found: dict[int, list[Event]] = {}

    def client(number: int) -> None:
        found[number] = list(service.submit(Request(prompts[number], 10)))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    for number, prompt in enumerate(prompts):
        check_whole(found[number])
        assert ids(found[number]) == text(prompt, 10)


def test_coroutines_read_streams_side_by_side(service: Service) -> None:
    async def client(prompt: list[int]) -> list[Event]:
        return [event async for event in service.submit(Request(prompt, 12))]

    async def all_of_them() -> list[list[Event]]:
        return await asyncio.gather(*(client([i, 3]) for i in range(6)))

    for i, events in enumerate(asyncio.run(all_of_them())):
        check_whole(events)
        assert ids(events) == text([i, 3], 12)


def test_a_coroutine_that_is_cancelled_while_it_waits_leaves_the_stream_whole(
    stepped: tuple[SteppedVerifier, Service],
) -> None:
    verifier, service = stepped
    stream = service.submit(Request([1, 2], 3))

    async def impatient() -> list[Event]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)
        verifier.let(100)
        return [event async for event in stream]

    events = asyncio.run(impatient())
    check_whole(events)
    assert ids(events) == text([1, 2], 3)


def test_a_loop_that_has_gone_holds_up_nobody(stepped: tuple[SteppedVerifier, Service]) -> None:
    verifier, service = stepped
    stream = service.submit(Request([1, 2], 3))
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(anext(stream))  # type: ignore[arg-type]
    loop.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    loop.close()
    verifier.let(100)
    assert ids(list(stream)) == text([1, 2], 3)


def test_a_slow_reader_blocks_nobody(service: Service) -> None:
    slow = service.submit(Request([1, 2], 40))
    quick = [list(service.submit(Request([i, 7], 20))) for i in range(4)]
    assert [ids(events) for events in quick] == [text([i, 7], 20) for i in range(4)]
    events = list(slow)
    check_whole(events)
    assert ids(events) == text([1, 2], 40)
    assert list(slow) == []


def test_cancelling_in_the_queue_frees_only_its_own(stepped: tuple[SteppedVerifier, Service]) -> None:
    verifier, service = stepped
    running = [service.submit(Request([i, i], 4)) for i in range(2)]
    queued, behind = service.submit(Request([5], 4)), service.submit(Request([6], 4))
    verifier.await_pass()
    queued.cancel()
    verifier.let(100)
    (last,) = queued
    assert (last.finish, last.tokens) == (FinishReason.CANCELLED, ())
    for stream, prompt in [(running[0], [0, 0]), (running[1], [1, 1]), (behind, [6])]:
        assert ids(list(stream)) == text(prompt, 4)


def test_cancelling_in_prefill_and_in_decoding_keeps_what_came_before(
    stepped: tuple[SteppedVerifier, Service],
) -> None:
    verifier, service = stepped
    decoding = service.submit(Request([1, 2], 30))
    verifier.let(3)
    first = [next(decoding) for _ in range(2)]
    verifier.await_pass()
    decoding.cancel()
    prefill = service.submit(Request([3] * 50, 5))
    verifier.let(1)
    rest = list(decoding)
    check_whole([*first, *rest])
    assert rest[-1].finish is FinishReason.CANCELLED
    cut = ids([*first, *rest])
    assert cut == text([1, 2], 30)[: len(cut)]
    prefill.cancel(FinishReason.STOP)
    verifier.let(100)
    assert [event.finish for event in prefill] == [FinishReason.STOP]
    assert ids(list(service.submit(Request([1, 2], 6)))) == text([1, 2], 6)


def test_cancelling_while_the_end_is_on_its_way_changes_nothing(
    stepped: tuple[SteppedVerifier, Service],
) -> None:
    verifier, service = stepped
    short, other = service.submit(Request([1, 2], 1)), service.submit(Request([3, 4], 5))
    verifier.await_pass()
    verifier.let(1)
    # The first pass is over once the second one stands at the gate; its events are out or on their way.
    verifier.reached.acquire()
    short.cancel()
    other.cancel()
    other.cancel()
    verifier.let(100)
    events = list(short)
    check_whole(events)
    assert (ids(events), events[-1].finish) == (text([1, 2], 1), FinishReason.LENGTH)
    check_whole(list(other))


def test_leaving_a_stream_s_block_cancels_it(stepped: tuple[SteppedVerifier, Service]) -> None:
    verifier, service = stepped
    with service.submit(Request([1, 2], 50)) as stream:
        verifier.let(2)
        next(stream)
    verifier.let(100)
    assert list(stream)[-1].finish is FinishReason.CANCELLED


def test_closing_ends_all_streams_and_takes_no_more(stepped: tuple[SteppedVerifier, Service]) -> None:
    verifier, service = stepped
    streams = [service.submit(Request([i], 50)) for i in range(4)]
    verifier.await_pass()
    closer = threading.Thread(target=service.close)
    closer.start()
    verifier.let(100)
    closer.join(timeout=PATIENCE)
    for stream in streams:
        check_whole(events := list(stream))
        assert events[-1].finish is FinishReason.CANCELLED
    with pytest.raises(ClosedError, match="closed"):
        service.submit(Request([1], 2))
    streams[0].cancel()
    service.close()


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.TIME])
def test_closing_tells_everyone_the_reason_with_what_came_before(
    stepped: tuple[SteppedVerifier, Service], reason: FinishReason
) -> None:
    verifier, service = stepped
    running = [service.submit(Request([i, 1], 50)) for i in range(2)]
    queued = service.submit(Request([5], 50))
    for _ in range(4):
        verifier.let(1)
        verifier.await_pass()
    closer = threading.Thread(target=service.close, args=(reason,))
    closer.start()
    until(lambda: service._closing)
    late = threading.Thread(target=service.close, args=(FinishReason.FAILED,))
    late.start()
    verifier.let(100)
    closer.join(timeout=PATIENCE)
    late.join(timeout=PATIENCE)
    for i, stream in enumerate(running):
        check_whole(events := list(stream))
        assert events[-1].finish is reason
        found = ids(events)
        assert found and found == text([i, 1], 50)[: len(found)]
        assert events[-1].statistics.output_tokens == len(found)
    (last,) = queued
    assert (last.finish, last.tokens) == (reason, ())
    assert service.load.waiting == service.load.active == 0


def test_requests_come_in_together_or_not_at_all() -> None:
    verifier = SteppedVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE)), queue=2) as service:
        first = service.begin([service.prepare(Request([i], 2)) for i in range(3)])
        with pytest.raises(QueueFullError, match="more than 2 requests would wait"):
            service.begin([service.prepare(Request([i], 2)) for i in range(2)])
        assert service.load.waiting == 1
        with pytest.raises(RequestError, match="5 answers are asked for at once, but only 4"):
            service.begin([service.prepare(Request([i], 2)) for i in range(5)])
        (second,) = service.begin([service.prepare(Request([7], 2))])
        service.require_room("another")
        with pytest.raises(QueueFullError):
            service.require_room()
        with pytest.raises(QueueFullError):
            service.submit(Request([8], 2))
        other = service.submit(Request([8], 2, tenant="another"))
        verifier.let(100)
        for stream, prompt in [*zip(first, ([0], [1], [2]), strict=True), (second, [7]), (other, [8])]:
            assert ids(list(stream)) == text(prompt, 2)
        assert len(service.begin([service.prepare(Request([i], 2)) for i in range(4)])) == 4


def test_an_impossible_request_is_refused_where_it_is_made(service: Service) -> None:
    with pytest.raises(RequestError, match="empty"):
        service.submit(Request([], 2))
    with pytest.raises(RequestError, match="token 99"):
        service.check(Request([99], 2))
    with pytest.raises(RequestError, match="thousands of digits"):
        service.check(Request([10**5000], 2))
    for stranger in ("5", 1.0, float("nan"), None):
        with pytest.raises(RequestError, match="integers"):
            service.check(Request([stranger], 2))  # type: ignore[list-item]
    service.check(Request([1], 2))
    assert ids(list(service.submit(Request([1], 2)))) == text([1], 2)


class FailingVerifier(ToyVerifier):
    """Raises in the passes of these numbers, from 1 on, after it wrote to the state."""

    def __init__(self, failing: set[int], error: Exception) -> None:
        super().__init__(SHAPE)
        self.failing, self.error = failing, error

    def forward(self, plan: PassPlan) -> Any:
        logits = super().forward(plan)
        if len(self.passes_run) in self.failing:
            raise self.error
        return logits


def test_a_step_that_fails_once_is_tried_again() -> None:
    with Service(Engine(FailingVerifier({2, 5}, OSError("hiccup")), everything(SHAPE))) as service:
        assert ids(list(service.submit(Request([1, 2], 10)))) == text([1, 2], 10)


@pytest.mark.parametrize(
    ("error", "words"),
    [(OSError("broken"), "could not be run.*broken.*validate"), (RequestError("a sentence"), "a sentence")],
)
def test_an_engine_that_goes_on_failing_fails_its_streams_and_serves_again(
    error: Exception, words: str
) -> None:
    verifier = FailingVerifier({*range(3, 6)}, error)
    with Service(Engine(verifier, everything(SHAPE))) as service:
        streams = [service.submit(Request([i, 2], 10)) for i in range(3)]
        ends = []
        for stream in streams:
            check_whole(events := list(stream))
            ends.append(events[-1])
        failed = [end for end in ends if end.finish is FinishReason.FAILED]
        assert failed
        assert all(re.search(words, end.error or "") for end in failed)
        assert ids(list(service.submit(Request([7, 2], 10)))) == text([7, 2], 10)


def test_a_state_that_is_lost_costs_passes_and_no_token() -> None:
    with Service(Engine(LosingVerifier(SHAPE, {3, 4, 9}), everything(SHAPE))) as service:
        streams = [service.submit(Request([i, 2], 10)) for i in range(2)]
        for i, stream in enumerate(streams):
            check_whole(events := list(stream))
            assert ids(events) == text([i, 2], 10)
            assert events[-1].statistics.states_lost > 0


class FailingEngine(Engine):
    """Fails in pass number `failing`, when its tokens are part of their sequences already."""

    def __init__(self, failing: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(ToyVerifier(SHAPE), everything(SHAPE))
        self.failing, self.meanwhile, self.passes = failing, meanwhile, 0

    def _commit(self, part: SequenceRows, found: PassResult) -> None:
        super()._commit(part, found)
        self.passes += 1
        if self.passes == self.failing:
            self.meanwhile()
            raise OSError("hiccup")


@pytest.mark.parametrize(("count", "finish"), [(10, FinishReason.CANCELLED), (3, FinishReason.LENGTH)])
def test_what_a_step_committed_before_it_failed_comes_with_the_last_event(
    count: int, finish: FinishReason
) -> None:
    streams: list[Stream] = []
    with Service(FailingEngine(3, lambda: streams[0].cancel())) as service:
        with service._wake:
            streams.append(service.submit(Request([1, 2], count)))
        check_whole(events := list(streams[0]))
        assert (ids(events), events[-1].finish) == (text([1, 2], 3), finish)
        assert ids(list(service.submit(Request([7], 4)))) == text([7], 4)


def test_an_end_that_a_failed_step_could_not_tell_is_told_when_the_service_closes() -> None:
    # The thread itself marks the service as closing, between the failure and the next step.
    service = Service(FailingEngine(3, lambda: service.close()))
    stream = service.submit(Request([1, 2], 3))
    check_whole(events := list(stream))
    assert (ids(events), events[-1].finish) == (text([1, 2], 3), FinishReason.LENGTH)


class LeavingSource(SourceOf):
    """Ends its thread, as a plugin that calls sys.exit does."""

    def propose(self, asks: Any) -> Any:
        raise SystemExit(3)


def test_a_thread_that_dies_leaves_nobody_waiting() -> None:
    source = LeavingSource(lambda *_: OracleSession([1, 2], 2))
    service = Service(Engine(ToyVerifier(SHAPE), everything(SHAPE), source))
    (*_, end) = service.submit(Request([1, 2], 10))
    assert end.finish is FinishReason.FAILED
    service._thread.join(timeout=PATIENCE)
    with pytest.raises(ClosedError):
        service.submit(Request([1, 2], 10))
    with pytest.raises(ClosedError):
        service.call(lambda engine: engine.busy)
    service.close()


def test_a_forked_process_is_told_that_it_has_no_engine(service: Service) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(round(PATIENCE))
        try:
            service.submit(Request([1, 2], 2))
        except ClosedError:
            service.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_state_that_is_lost_again_and_again_fails_its_sequences() -> None:
    with Service(Engine(LosingVerifier(SHAPE, {3, 4, 5}), everything(SHAPE))) as service:
        (*_, end) = service.submit(Request([1, 2], 10))
        assert (end.finish, end.error) == (
            FinishReason.FAILED,
            "the verifier lost its state 3 times without a new token; last: the worker died",
        )
        assert ids(list(service.submit(Request([1, 2], 10)))) == text([1, 2], 10)


def test_a_stream_that_two_read_ends_for_both() -> None:
    stream = Stream(0, lambda *_: None)
    readers = [threading.Thread(target=lambda: list(stream)) for _ in range(2)]
    for reader in readers:
        reader.start()
    with Service(Engine(ToyVerifier(SHAPE), everything(SHAPE))) as service:
        for event in service.submit(Request([1], 3)):
            stream.put(event)
    for reader in readers:
        reader.join(timeout=PATIENCE)
        assert not reader.is_alive()
