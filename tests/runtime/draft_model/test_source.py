"""A second model drafts for an engine: its drafts are accepted, and no token changes."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from patience import PATIENCE
from second_model import ReadySource
from toy import ToyVerifier, drain, everything, ids, prompt_rows, sequential_text, toy_shape
from waiting import until

from anespec.runtime.draft_model.continuing import Continuing
from anespec.runtime.draft_model.source import AHEAD, DraftLimits, DraftModelSession, DraftModelSource
from anespec.runtime.draft_model.translation import SameIds
from anespec.runtime.drafters import DraftSession, Outcome, TopKLogits
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowKind
from anespec.runtime.sampling import SamplingParameters

SHAPE = toy_shape(sequences=3)


def toy_source(verifier: ToyVerifier, *, has_own_device: bool = False) -> DraftModelSource:
    model = Continuing(verifier)
    vocabulary = verifier.shape.vocabulary
    return DraftModelSource(model, lambda: SameIds(vocabulary), has_own_device=has_own_device)


def text(prompt: Sequence[int], count: int, repetitive: int = 0) -> list[int]:
    return sequential_text(SHAPE, repetitive, prompt, count, SamplingParameters())


def ready(session: DraftSession) -> DraftModelSession:
    """Wait until the state of a session's text is computed."""
    assert isinstance(session, DraftModelSession)
    session._model.wait(lambda: session._continuation.is_over)
    return session


@pytest.mark.parametrize(("most", "least", "longest"), [(15, 0.0, 4), (2, 0.0, 2), (15, 1.0, 0)])
def test_a_guess_has_no_more_tokens_and_none_less_likely_than_is_asked(
    most: int, least: float, longest: int
) -> None:
    model = Continuing(ToyVerifier(SHAPE))
    limits = DraftLimits(most, least)
    source = DraftModelSource(model, lambda: SameIds(SHAPE.vocabulary), limits=limits)
    session = source.open("", [1, 2, 3])
    ready(session)
    assert len(source.propose([(session, 4)])[0].tokens) == longest
    source.close()


def test_the_same_model_guesses_every_token() -> None:
    verifier = ToyVerifier(SHAPE)
    source = ReadySource(ToyVerifier(SHAPE))
    engine = Engine(verifier, everything(SHAPE), source)
    found = ids(list(engine.generate(Request([1, 2, 3], 40))))
    source.close()
    assert found == text([1, 2, 3], 40)
    drafted = [sum(row.kind is RowKind.DRAFT for row in plan.rows) for plan in verifier.passes_run]
    assert sum(drafted) >= 25
    assert len(verifier.passes_run) < 20, "drafts saved no passes"


def test_another_model_changes_no_token() -> None:
    """This one is right at most in some places, and every text is that of the verifier alone."""
    verifier = ToyVerifier(SHAPE, repetitive=4)
    drafter = ToyVerifier(SHAPE, repetitive=2)
    source = ReadySource(drafter)
    engine = Engine(verifier, everything(SHAPE), source)
    prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9], [1, 2, 4]]
    numbers = [engine.submit(Request(prompt, 40)) for prompt in prompts]
    events = drain(engine)
    source.close()
    for number, prompt in zip(numbers, prompts, strict=True):
        assert ids(events[number]) == text(prompt, 40, repetitive=4)
    statistics = [events[number][-1].statistics for number in numbers]
    assert sum(each.accepted for each in statistics) > 20
    assert sum(each.proposed - each.accepted for each in statistics) > 5


def test_a_growing_text_costs_the_second_model_only_its_new_tokens() -> None:
    drafter = ToyVerifier(SHAPE)
    source = toy_source(drafter)
    session = ready(source.open("", [1, 2, 3, 4, 5, 6]))
    for token in (7, 8, 9):
        source.propose([(session, 4)])
        session.observe([token, token], Outcome(), TopKLogits(()))
    source.close()
    assert prompt_rows(drafter) <= 6 + 1 + 3 * 2


def test_no_draft_is_awaited_while_a_text_is_read() -> None:
    drafter, held = ToyVerifier(SHAPE), threading.Event()
    original = drafter.forward

    def forward(plan: PassPlan) -> object:
        held.wait(PATIENCE)
        return original(plan)

    drafter.forward = forward  # type: ignore[method-assign, assignment]
    source = toy_source(drafter)
    session = source.open("", [1, 2, 3])
    assert source.propose([(session, 3)])[0].tokens == ()
    held.set()
    ready(session)
    assert list(source.propose([(session, 3)])[0].tokens) == text([1, 2, 3], 3)
    source.close()


def slowed(verifier: ToyVerifier, seconds: float, started: Callable[[], None] = lambda: None) -> ToyVerifier:
    """A verifier whose device takes some time for each pass, without a processor."""
    original = verifier.forward

    def forward(plan: PassPlan) -> object:
        started()
        time.sleep(seconds)
        return original(plan)

    verifier.forward = forward  # type: ignore[method-assign, assignment]
    return verifier


def is_idle(model: Continuing) -> bool:
    with model._changed:
        return not model._commands and not model._running


@pytest.mark.parametrize("has_own_device", [False, True])
def test_two_devices_work_at_the_same_time(has_own_device: bool) -> None:
    """On its own device the second model goes on while the verifier's pass runs, and its tokens serve.

    The count of drafting passes during the verifier's passes shows it, not the clock.
    """
    verifying, during = threading.Event(), [0]

    def drafting() -> None:
        during[0] += verifying.is_set()

    drafter = slowed(ToyVerifier(SHAPE), 0.0, drafting)
    verifier = ToyVerifier(SHAPE)
    original = verifier.forward

    def forward(plan: PassPlan) -> object:
        verifying.set()
        # As long as the second model has anything to compute.
        until(lambda: is_idle(source.running))
        verifying.clear()
        return original(plan)

    verifier.forward = forward  # type: ignore[method-assign, assignment]
    source = ReadySource(drafter, has_own_device=has_own_device)
    engine = Engine(verifier, everything(SHAPE), source)
    events = list(engine.generate(Request([1, 2, 3], 40)))
    source.close()
    assert ids(events) == text([1, 2, 3], 40)
    assert events[-1].statistics.accepted >= 25
    if has_own_device:
        assert during[0] >= 10
    else:
        assert during[0] <= 2, "only the prompt is read beside the verifier's passes"


def test_tokens_beyond_a_draft_serve_if_the_draft_was_right() -> None:
    drafter = ToyVerifier(SHAPE)
    source = toy_source(drafter, has_own_device=True)
    session = ready(source.open("", [1, 2, 3]))
    expected = text([1, 2, 3], 20)
    before = len(drafter.passes_run)
    assert list(source.propose([(session, 4)])[0].tokens) == expected[:4]
    session.observe(expected[:5], Outcome(), TopKLogits(()))
    ready(session)
    passes = len(drafter.passes_run)
    assert list(source.propose([(session, 4)])[0].tokens) == expected[5:9]
    assert len(drafter.passes_run) == passes, "computed again"
    assert passes - before <= AHEAD
    session.observe([(expected[5] + 1) % SHAPE.vocabulary], Outcome(), TopKLogits(()))
    other = [1, 2, 3, *expected[:5], (expected[5] + 1) % SHAPE.vocabulary]
    assert list(source.propose([(session, 4)])[0].tokens) == text(other, 4)
    source.close()


def test_a_draft_ends_where_its_next_token_is_worth_less_than_a_pass() -> None:
    source = toy_source(slowed(ToyVerifier(SHAPE), 0.003))
    session = ready(source.open("", [1, 2, 3]))
    for _ in range(2):
        source.propose([(session, 4)])
        session.observe(text([1, 2, 3], 1), Outcome(), TopKLogits(()))
    assert source.cost.microseconds > 1000
    source.weigh(1000.0)
    assert len(source.propose([(session, 8)])[0].tokens) == 8
    session.observe([1], Outcome(), TopKLogits(()))
    source.weigh(1e-6)
    assert len(source.propose([(session, 8)])[0].tokens) == 1
    source.close()


def test_a_text_that_the_second_model_cannot_hold_gets_no_drafts() -> None:
    small = toy_shape(sequences=1, context=20)
    source = toy_source(ToyVerifier(small))
    verifier = ToyVerifier(SHAPE)
    engine = Engine(verifier, everything(SHAPE), source)
    events = list(engine.generate(Request([1] * 12, 40)))
    source.close()
    assert ids(events) == text([1] * 12, 40)
    assert events[-1].statistics.draft_failures == 0


def test_closing_releases_the_model_once() -> None:
    released: list[int] = []
    source = DraftModelSource(Continuing(ToyVerifier(SHAPE)), lambda: SameIds(12), lambda: released.append(1))
    source.close()
    source.close()
    assert released == [1]


@pytest.mark.slow
def test_long_texts_are_opened_while_other_sessions_draft() -> None:
    """The engine opens them on another thread, and their sessions catch up with what came meanwhile."""
    shape = toy_shape(sequences=2, context=2400, pools=(KVCacheGroupShape("global", 2432, None),))
    verifier, drafter = ToyVerifier(shape), ToyVerifier(shape)
    source = ReadySource(drafter)
    assert source.cost.opens_aside
    engine = Engine(verifier, everything(shape), source)
    long, short = [token % 12 for token in range(1100)], [1, 2, 3]
    lengths = {len(long): 40, len(short): 600}
    numbers = [engine.submit(Request(prompt, lengths[len(prompt)])) for prompt in (long, short)]
    events = drain(engine)
    source.close()
    for number, prompt in zip(numbers, (long, short), strict=True):
        assert ids(events[number]) == sequential_text(
            shape, 0, prompt, lengths[len(prompt)], SamplingParameters()
        )
        assert events[number][-1].statistics.draft_failures == 0
    assert events[numbers[1]][-1].statistics.accepted >= 20
