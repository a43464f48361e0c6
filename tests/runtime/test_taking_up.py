"""What is proven while requests run is taken up between two passes, and no text changes for it."""

import threading
from collections.abc import Callable, Sequence

import pytest
from drafting import OracleSession, SourceOf
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from stepping import Clock, SteppedVerifier
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape

from anespec.runtime.drafters import DraftSession
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.service import Service
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowKind, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.system.errors import AnespecError, GoldenGateError

GREEDY = SamplingParameters()
RING = KVCacheGroupShape("local", 64, 8)
SHAPES = (
    toy_shape(sequences=3),
    toy_shape(sequences=2, pools=(KVCacheGroupShape("global", 64, None), RING)),
    toy_shape(partial_spans=True),
)


def knowing(shape: VerifierShape, texts: Sequence[Sequence[int]], wrong_each: int = 0) -> SourceOf:
    """Sessions that know how each text goes on, wherever in it they are opened."""

    def make(tenant: str, tokens: Sequence[int]) -> DraftSession:
        whole = next(text for text in texts if [*text[: len(tokens)]] == [*tokens])
        return OracleSession(whole, len(tokens), wrong_each)

    return SourceOf(make)


def drafts(passes: Sequence[PassPlan]) -> int:
    return sum(row.kind is RowKind.DRAFT for plan in passes for row in plan.rows)


def regions(passes: Sequence[PassPlan], slots: int) -> int:
    """The most sequences that shared a pass, by where their rows live."""
    return max(
        len({row.slots[0].home // slots for row in plan.rows if row.slots[0].home is not None})
        for plan in passes
    )


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(
    shape=st.sampled_from(SHAPES),
    prompts=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=12), min_size=1, max_size=5),
    tokens=st.integers(8, 30),
    change=st.integers(0, 40),
    wrong_each=st.sampled_from((0, 3)),
    temperature=st.sampled_from((0.0, 1.0)),
)
def test_texts_are_the_same_whenever_proofs_come(
    shape: VerifierShape,
    prompts: list[list[int]],
    tokens: int,
    change: int,
    wrong_each: int,
    temperature: float,
) -> None:
    sampling = SamplingParameters(temperature=temperature, seed=5)
    expected = [sequential_text(shape, 0, prompt, tokens, sampling) for prompt in prompts]
    texts = [[*prompt, *text] for prompt, text in zip(prompts, expected, strict=True)]
    verifier = ToyVerifier(shape)
    source = knowing(shape, texts, wrong_each)
    engine = Engine(verifier, Proven.nothing(shape), source, clock=Clock())
    numbers = [engine.submit(Request(prompt, tokens, sampling)) for prompt in prompts]
    found: dict[int, list[Event]] = {number: [] for number in numbers}
    for _ in range(change):
        for event in engine.step():
            found[event.sequence].append(event)
    before = len(verifier.passes_run)
    assert not drafts(verifier.passes_run), "nothing is guessed before that is proven"
    assert not before or regions(verifier.passes_run, 64) == 1, "and nobody shares a pass"
    assert all(plan.width == shape.block for plan in verifier.passes_run)
    is_over = not engine.busy
    engine.use(everything(shape))
    while engine.busy:
        for event in engine.step():
            found[event.sequence].append(event)
    assert [ids(found[number]) for number in numbers] == expected
    if not is_over and not wrong_each and change < tokens // 2:
        assert engine.counts.accepted, "the sequence that ran goes on with drafts, and they are right"
        assert drafts(verifier.passes_run[before:])


def test_waiting_requests_share_passes_from_the_change_on() -> None:
    shape = SHAPES[0]
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, Proven.nothing(shape))
    for first in range(3):
        engine.submit(Request([first], 20))
    for _ in range(5):
        engine.step()
    assert (engine.active, engine.capacity) == (1, 1)
    engine.use(everything(shape))
    engine.step()
    assert (engine.active, engine.capacity) == (3, 3)
    assert regions(verifier.passes_run[-1:], 64) == 3


def test_what_was_prefilled_before_is_gone_on_from_afterwards() -> None:
    shape = SHAPES[0]
    engine = Engine(ToyVerifier(shape), Proven.nothing(shape))
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    text = ids(list(engine.generate(Request(prompt, 5))))
    assert [*engine.generate(Request(prompt, 5))][-1].statistics.reused_tokens == 0
    engine.use(everything(shape))
    events = [*engine.generate(Request(prompt, 5))]
    assert events[-1].statistics.reused_tokens > 0
    assert ids(events) == text


def test_a_service_takes_it_up_between_two_passes_of_a_running_request() -> None:
    shape = SHAPES[0]
    text = sequential_text(shape, 0, [1, 2], 30, GREEDY)
    verifier = SteppedVerifier(shape)
    source = knowing(shape, [[1, 2, *text]])
    with Service(Engine(verifier, Proven.nothing(shape), source), queue=1) as service:
        stream = service.submit(Request([1, 2], 30))
        verifier.let(4)
        for _ in range(5):
            verifier.await_pass()
        taking = threading.Thread(target=service.use, args=(everything(shape),))
        taking.start()
        verifier.let(1000)
        taking.join(PATIENCE)
        assert not taking.is_alive()
        events = list(stream)
        assert ids(events) == text
        assert events[-1].statistics.accepted > 0
        assert service.load.sequences == 3
        service.require_room(count=4)  # three that run, and one that waits
    assert not drafts(verifier.passes_run[:5])


def test_whoever_asks_is_told_why_nothing_is_answered_any_more() -> None:
    shape = SHAPES[0]
    verifier = SteppedVerifier(shape)
    error = GoldenGateError("it computes something else")
    service = Service(Engine(verifier, Proven.nothing(shape)))
    running, waiting = (service.submit(Request([first], 30)) for first in (1, 2))
    verifier.await_pass()
    service.refuse(error)
    verifier.let(1000)
    for stream in (running, waiting):
        last = list(stream)[-1]
        assert (last.finish, last.error) == (FinishReason.FAILED, str(error))
    for ask in (
        lambda: service.submit(Request([3], 5)),
        lambda: service.check(Request([3], 5)),
        lambda: service.require_room(),
    ):
        with pytest.raises(GoldenGateError, match="something else"):
            ask()
    service.close()


def test_a_service_says_when_passes_begin_and_when_they_have_ended() -> None:
    shape = SHAPES[0]
    told: list[bool] = []
    verifier = SteppedVerifier(shape)
    service = Service(Engine(verifier, everything(shape)), on_busy=told.append)
    assert told == []
    stream = service.submit(Request([1], 3))
    verifier.await_pass()
    assert told == [True], "before the first pass runs"
    verifier.let(1000)
    list(stream)
    service.close()
    assert told == [True, False]


def test_a_service_makes_way_before_each_pass_and_hands_out_first_what_there_is() -> None:
    verifier = SteppedVerifier(SHAPES[0])
    made: list[int] = []

    def make_way(before: Callable[[], None]) -> None:
        before()
        made.append(len(verifier.passes_run))

    service = Service(Engine(verifier, everything(SHAPES[0])), make_way=make_way)
    assert made == []
    stream = service.submit(Request([1], 3))
    verifier.let(1000)
    assert len([token for event in stream for token in event.tokens]) == 3
    service.close()
    assert made == list(range(len(verifier.passes_run)))


def test_a_service_that_is_closed_while_it_runs_has_ended_to_run() -> None:
    told: list[bool] = []
    verifier = SteppedVerifier(SHAPES[0])
    service = Service(Engine(verifier, everything(SHAPES[0])), on_busy=told.append)
    service.submit(Request([1], 50))
    verifier.await_pass()
    verifier.let(1000)
    service.close()
    assert told == [True, False]
    with pytest.raises(AnespecError):
        service.use(everything(SHAPES[0]))
