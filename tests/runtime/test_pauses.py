"""One who asks for long answers has all regions only until somebody else comes; no text changes by that."""

import pytest
from drafting import oracle_source
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.passes import StateLostError
from anespec.runtime.sampling import SamplingParameters

SHAPE = toy_shape(sequences=2)
WARM = SamplingParameters(temperature=1.0, seed=3, frequency_penalty=0.5)
PROMPTS = ([1, 2, 3], [4, 5, 6], [7, 8, 9, 10])


def request(number: int, tokens: int, tenant: str) -> Request:
    return Request(PROMPTS[number], tokens, WARM, tenant=tenant)


def right(number: int, tokens: int) -> list[int]:
    return sequential_text(SHAPE, 2, PROMPTS[number], tokens, WARM)


def run(engine: Engine, events: dict[int, list[Event]], steps: int | None = None) -> list[int]:
    """Step until nothing is left, or so often; which sequences ended, in order."""
    ended = []
    while engine.busy and (steps is None or steps > 0):
        steps = None if steps is None else steps - 1
        for event in engine.step():
            events.setdefault(event.sequence, []).append(event)
            ended += [event.sequence] if event.finish is not None else []
    return ended


@pytest.mark.parametrize("drafts", [False, True])
def test_who_comes_anew_waits_for_no_long_answer(drafts: bool) -> None:
    source = oracle_source(PROMPTS[0], right(0, 50)) if drafts else None
    engine = Engine(ToyVerifier(SHAPE, 2), everything(SHAPE), source)
    long = [engine.submit(request(number, 50, "many")) for number in (0, 1)]
    events: dict[int, list[Event]] = {}
    run(engine, events, 8)
    short = engine.submit(request(2, 4, "one"))
    ended = run(engine, events)
    assert ended[0] == short
    assert ids(events[short]) == right(2, 4)
    for number, sequence in enumerate(long):
        assert ids(events[sequence]) == right(number, 50)
        assert events[sequence][-1].statistics.output_tokens == 50


def test_nobody_s_only_sequence_is_paused_and_nothing_of_an_owner_s_for_another_of_theirs() -> None:
    engine = Engine(ToyVerifier(SHAPE, 2), everything(SHAPE))
    first = [engine.submit(request(0, 20, "many")), engine.submit(request(1, 20, "one"))]
    later = [engine.submit(request(2, 4, tenant)) for tenant in ("many", "third")]
    assert run(engine, {})[:2] == first
    engine = Engine(ToyVerifier(SHAPE, 2), everything(SHAPE))
    first = [engine.submit(request(number, 20, "many")) for number in (0, 1)]
    later = [engine.submit(request(2, 4, "many"))]
    assert run(engine, {}) == [*first, *later]


def test_what_is_paused_can_be_given_up_and_ends_with_its_time() -> None:
    now = 0.0
    engine = Engine(ToyVerifier(SHAPE, 2), everything(SHAPE), clock=lambda: now)
    numbers = [engine.submit(Request(PROMPTS[at], 50, WARM, tenant="many", seconds=9.0)) for at in (0, 1)]
    events: dict[int, list[Event]] = {}
    run(engine, events, 6)
    engine.submit(request(2, 40, "one"))
    run(engine, events, 2)
    (paused,) = [number for number in numbers if engine._scheduler.find(number) is None]
    had = len(ids(events[paused]))
    now = 10.0
    run(engine, events, 1)
    assert events[paused][-1].finish is FinishReason.TIME
    assert events[paused][-1].statistics.output_tokens == had > 0

    engine = Engine(ToyVerifier(SHAPE, 2), everything(SHAPE))
    numbers = [engine.submit(request(at, 50, "many")) for at in (0, 1)]
    run(engine, {}, 6)
    engine.submit(request(2, 40, "one"))
    run(engine, {}, 2)
    (paused,) = [number for number in numbers if engine._scheduler.find(number) is None]
    last = engine.cancel(paused)
    assert last is not None
    assert last.finish is FinishReason.CANCELLED
    assert engine.cancel(paused) is None
    run(engine, {})
    assert not engine.busy


def test_a_state_that_is_lost_meanwhile_changes_no_text() -> None:
    class Losing(ToyVerifier):
        losses = 1

        def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
            raise StateLostError("gone")

        def forward(self, plan):  # type: ignore[no-untyped-def]
            if len(self.passes_run) == 9 and self.losses:
                self.losses = 0
                raise StateLostError("gone")
            return super().forward(plan)

    engine = Engine(Losing(SHAPE, 2), everything(SHAPE))
    long = [engine.submit(request(number, 50, "many")) for number in (0, 1)]
    events: dict[int, list[Event]] = {}
    run(engine, events, 8)
    engine.submit(request(2, 4, "one"))
    run(engine, events)
    assert [ids(events[number]) for number in long] == [right(0, 50), right(1, 50)]
