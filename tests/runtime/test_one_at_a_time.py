"""Where one sequence runs at a time, tenants get the region for equal times, whatever they ask for."""

import statistics
import threading

from patience import PATIENCE
from stepping import Clock, SteppedVerifier
from toy import ToyVerifier, ids, sequential_text, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.scheduler import HALF_LIFE, HOLD_SECONDS, MIN_OWNER_SECONDS, TenantSeconds
from anespec.runtime.engine.service import Service
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters

SHAPE = toy_shape(sequences=2)
SECONDS_PER_PASS = 0.003
CLIENT_SECONDS = 0.01
"""From the end of an answer to the next request."""


class Timed(ToyVerifier):
    """Takes simulated time for a pass."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(SHAPE)
        self.clock = clock

    def wait(self):  # type: ignore[no-untyped-def]
        self.clock.now += SECONDS_PER_PASS
        return super().wait()


def short_waits(count: int, others: int) -> list[float]:
    """Simulated seconds of one tenant's short requests, one after another, beside `others` long ones."""
    clock = Clock()
    engine = Engine(Timed(clock), Proven.nothing(SHAPE), clock=clock)
    for _ in range(others):
        engine.submit(Request([1], 55, tenant="long"))
    asks, asked, waits, number = clock.now, clock.now, [], -1
    while len(waits) < count:
        if number < 0 and (clock.now >= asks or not engine.busy):
            clock.now = asked = max(asks, clock.now)
            number = engine.submit(Request([2], 4, tenant="short"))
        if held := engine.hold_seconds:
            # As the service does: it waits for as long, unless a request comes.
            clock.now = min(clock.now + held, asks) if number < 0 else clock.now + held
            continue
        for event in engine.step():
            if event.finish is None:
                continue
            if event.sequence == number:
                waits.append(clock.now - asked)
                number, asks = -1, clock.now + CLIENT_SECONDS
            else:
                engine.submit(Request([1], 55, tenant="long"))
    return waits


def test_short_answers_do_not_wait_for_a_long_one_each_time() -> None:
    alone = statistics.median(short_waits(60, 0))
    beside = short_waits(60, 6)
    assert statistics.median(beside) <= 1.5 * alone
    assert statistics.mean(beside) <= 3.0 * alone, "as long as the other runs, it runs itself"


def test_nobody_is_waited_for_who_has_had_more_or_has_another_waiting() -> None:
    clock = Clock()
    engine = Engine(Timed(clock), Proven.nothing(SHAPE), clock=clock)

    def run_to_an_end() -> None:
        while not any(event.finish for event in engine.step()):
            pass

    engine.submit(Request([1], 40, tenant="long"))
    run_to_an_end()
    assert engine.hold_seconds == 0.0, "nobody waits"
    engine.submit(Request([1], 40, tenant="long"))
    engine.submit(Request([2], 4, tenant="short"))
    assert engine.hold_seconds == 0.0
    run_to_an_end()
    assert abs(engine.hold_seconds - HOLD_SECONDS) < 1e-9, "the short one may come again"
    clock.now += HOLD_SECONDS / 2
    assert abs(engine.hold_seconds - HOLD_SECONDS / 2) < 1e-9
    clock.now += HOLD_SECONDS
    assert engine.hold_seconds == 0.0
    run_to_an_end()
    engine.submit(Request([2], 4, tenant="short"))
    assert engine.hold_seconds == 0.0, "who has had more is not waited for"
    urgent = Request([1], 4, tenant="long", priority=1)
    run_to_an_end()
    engine.submit(urgent)
    assert engine.hold_seconds == 0.0, "nobody of a higher priority waits"


def test_what_was_taken_long_ago_does_not_count() -> None:
    clock = Clock()
    seconds = TenantSeconds(clock)
    seconds.take("a", 8.0)
    clock.now += HALF_LIFE
    assert abs(seconds.of("a") - 4.0) < 1e-9
    assert seconds.of("b") == 0.0
    for number in range(1000):
        clock.now += HALF_LIFE
        seconds.take(str(number), MIN_OWNER_SECONDS)
    assert len(seconds) < 5, "who is gone is forgotten"


def test_the_service_waits_for_no_longer_and_ends_meanwhile() -> None:
    """Its text is the same, and it neither runs on without a region nor waits for who does not come."""
    verifier = SteppedVerifier(SHAPE)
    service = Service(Engine(verifier, Proven.nothing(SHAPE)))
    verifier.let(10_000)
    list(service.submit(Request([1], 40, tenant="long")))
    streams = [service.submit(Request([1], 40, tenant="long")) for _ in range(2)]
    short = service.submit(Request([2], 4, tenant="short"))
    for stream, prompt, count in [(short, [2], 4), *((each, [1], 40) for each in streams)]:
        assert ids(list(stream)) == sequential_text(SHAPE, 0, prompt, count, SamplingParameters())
    closing = threading.Thread(target=service.close)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
