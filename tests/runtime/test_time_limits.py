"""A request ends when its time is over, wherever it is, with the tokens that it has."""

from collections.abc import Sequence
from typing import Any

import pytest
from drafting import oracle_source
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import SteppedVerifier
from test_speculation import Clock
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.service import Service
from anespec.runtime.sampling import SamplingParameters
from anespec.system.errors import RequestError

SHAPE = toy_shape(sequences=2)


def text(prompt: Sequence[int], count: int) -> list[int]:
    return sequential_text(SHAPE, 0, prompt, count, SamplingParameters())


def timed_engine(seconds_per_pass: float) -> tuple[Engine, Clock]:
    clock = Clock()

    class Slow(ToyVerifier):
        def wait(self):  # type: ignore[no-untyped-def]
            clock.now += seconds_per_pass
            return super().wait()

    source = oracle_source([1, 2], text([1, 2], 50))
    return Engine(Slow(SHAPE), everything(SHAPE), source, clock=clock), clock


def ended(engine: Engine) -> dict[int, list[Event]]:
    events: dict[int, list[Event]] = {}
    while engine.busy:
        for event in engine.step():
            events.setdefault(event.sequence, []).append(event)
    return events


def test_a_sequence_that_runs_keeps_what_it_has_when_its_time_is_over() -> None:
    engine, _ = timed_engine(1.0)
    late, other = engine.submit(Request([1, 2], 50, seconds=3.5)), engine.submit(Request([3, 4], 20))
    events = ended(engine)
    assert events[late][-1].finish is FinishReason.TIME
    found = ids(events[late])
    assert 4 <= len(found) < 50
    assert found == text([1, 2], 50)[: len(found)]
    assert events[late][-1].statistics.output_tokens == len(found)
    assert (ids(events[other]), events[other][-1].finish) == (text([3, 4], 20), FinishReason.LENGTH)


def test_a_request_that_waits_ends_in_the_queue_and_holds_up_nobody() -> None:
    engine, _ = timed_engine(1.0)
    running = [engine.submit(Request([number], 12)) for number in range(2)]
    late, patient = engine.submit(Request([7], 5, seconds=2.5)), engine.submit(Request([8], 5, seconds=60))
    events = ended(engine)
    (last,) = events[late]
    assert (last.finish, last.tokens, last.statistics.queue_seconds) == (FinishReason.TIME, (), 3.0)
    assert [events[number][-1].finish for number in [*running, patient]] == [FinishReason.LENGTH] * 3
    assert ids(events[patient]) == text([8], 5)


def test_what_a_failed_step_committed_is_kept_when_the_time_is_over_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, clock = timed_engine(1.0)
    number = engine.submit(Request([1, 2], 50, seconds=10))
    engine.step()
    commit = engine._commit

    def failing(*arguments: Any) -> None:
        commit(*arguments)
        raise OSError("hiccup")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_commit", failing)
        with pytest.raises(OSError, match="hiccup"):
            engine.step()
    clock.now = 11.0
    (event,) = engine.step()
    assert (event.sequence, event.finish) == (number, FinishReason.TIME)
    assert event.tokens
    assert not engine.busy


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.floats(0.5, 30)), st.integers(1, 12)), min_size=1, max_size=8)
)
def test_nobody_runs_longer_than_a_pass_beyond_its_time(asked: list[tuple[float | None, int]]) -> None:
    engine, clock = timed_engine(1.0)
    limits = {
        engine.submit(Request([i], count, seconds=seconds)): (seconds, count, i)
        for i, (seconds, count) in enumerate(asked)
    }
    texts: dict[int, list[int]] = {number: [] for number in limits}
    while engine.busy:
        before = clock.now
        for event in engine.step():
            seconds, count, i = limits[event.sequence]
            texts[event.sequence] += [token.id for token in event.tokens]
            if event.finish is FinishReason.TIME:
                assert seconds is not None and seconds <= before < seconds + 1 + 1e-9
            elif event.finish is not None:
                assert len(texts[event.sequence]) == count
            assert texts[event.sequence] == text([i], count)[: len(texts[event.sequence])]
    assert all(texts[number] == text([i], n) for number, (limit, n, i) in limits.items() if limit is None)


def test_a_request_needs_some_time() -> None:
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(RequestError, match="seconds is"):
            Request([1], 5, seconds=seconds)


def test_a_service_ends_what_takes_too_long() -> None:
    verifier = SteppedVerifier(SHAPE)
    clock = Clock()
    with Service(Engine(verifier, everything(SHAPE), clock=clock)) as service:
        streams = [service.submit(Request([i], 9, seconds=5)) for i in range(3)]
        verifier.let(3)
        for _ in range(4):
            verifier.await_pass()
        clock.now = 6.0
        verifier.let(1)
        for i, stream in enumerate(streams):
            events = list(stream)
            assert events[-1].finish is FinishReason.TIME
            assert ids(events) == text([i], 9)[: 4 if i < 2 else 0]
        assert (service.load.waiting, service.load.active) == (0, 0)
