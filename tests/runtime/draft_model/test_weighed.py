"""N-grams and a second model draft together: each where it brings more, and the model only where it pays."""

from collections.abc import Sequence

import numpy as np
import pytest
from drafting import OracleSession, SourceOf
from second_model import ReadySource
from stepping import Clock
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape

import anespec.runtime.draft_model.weighed as weighed
from anespec.runtime.draft_model.source import NAME
from anespec.runtime.draft_model.weighed import FIRST_TRIALS, Gain, WeighedSource
from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, TopKLogits
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost

SHAPE = toy_shape(sequences=3)


class Counted(ReadySource):
    """A second model whose proposals are counted, and take `seconds` of a test's clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(ToyVerifier(SHAPE))
        self.asked = 0
        self._clock, self._seconds = clock, seconds

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        self.asked += len(asks)
        self._clock.now += self._seconds * len(asks)
        return super().propose(asks)


def text(prompt: Sequence[int], count: int) -> list[int]:
    return sequential_text(SHAPE, 0, prompt, count, SamplingParameters())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(weighed, "perf_counter", lambda: clock.now)
    return clock


def run(source: WeighedSource, texts: int, token_seconds: float | None) -> list[str]:
    """Propose and observe along some texts; the sources of the drafts that were chosen, by proposal."""
    names: list[str] = []
    for first in range(texts):
        prompt = [first % 12, first // 12 % 12, 3]
        whole = text(prompt, 24)
        session = source.open("", prompt)
        place = 0
        while place < len(whole) - 5:
            if token_seconds is not None:
                source.weigh(token_seconds)
            (draft,) = source.propose([(session, 4)])
            right = next(
                (n for n, (a, b) in enumerate(zip(draft.tokens, whole[place:], strict=False)) if a != b),
                len(draft.tokens),
            )
            names.append(draft.source)
            committed = whole[place : place + right + 1]
            session.observe(committed, Outcome(draft, right), TopKLogits(()))
            place += len(committed)
        session.close()
    return names


def ngrams(share_wrong: int) -> SourceOf:
    return SourceOf(lambda _, prompt: OracleSession([*prompt, *text(prompt, 30)], len(prompt), share_wrong))


def test_a_cheap_model_drafts_where_n_grams_are_wrong(clock: Clock) -> None:
    model = Counted(clock, 1e-4)
    source = WeighedSource(ngrams(share_wrong=1), model)
    names = run(source, 12, token_seconds=0.05)
    source.close()
    assert source.name == "test+model"
    assert names.count(NAME) >= 0.8 * len(names)


def test_a_model_whose_passes_cost_more_than_they_bring_is_not_used(clock: Clock) -> None:
    model = Counted(clock, 1.0)
    source = WeighedSource(ngrams(share_wrong=1), model)
    names = run(source, 40, token_seconds=0.05)
    source.close()
    assert len(names) > 300
    assert model.asked <= 5 * FIRST_TRIALS + 25, "it was asked far more often than to try it"


def test_a_model_is_not_asked_where_n_grams_are_right(clock: Clock) -> None:
    model = Counted(clock, 0.01)
    source = WeighedSource(ngrams(share_wrong=0), model)
    names = run(source, 40, token_seconds=0.05)
    source.close()
    assert model.asked <= 5 * FIRST_TRIALS + 12
    assert names.count("oracle") > 0.7 * len(names)


def test_without_known_costs_the_model_is_always_asked(clock: Clock) -> None:
    model = Counted(clock, 1.0)
    source = WeighedSource(ngrams(share_wrong=1), model)
    names = run(source, 5, token_seconds=None)
    source.close()
    assert model.asked == len(names)


def test_a_gain_that_stops_is_noticed_and_tried_again_ever_more_rarely() -> None:
    gain = Gain()
    for _ in range(40):
        assert gain.is_wanted(0.05)
        gain.learn(3, 0.01, 0.05)
    asked = 0
    for _ in range(1000):
        gain.skipped += 1
        if gain.is_wanted(0.05):
            asked += 1
            gain.learn(0, 0.01, 0.05)
    assert 30 < asked < 120
    for _ in range(600):
        gain.skipped += 1
        if gain.is_wanted(0.05):
            gain.learn(4, 0.01, 0.05)
    assert gain.pays(0.05), "it pays again and is not found out"


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_with_both_writes_the_same_text(seed: int) -> None:
    random = np.random.default_rng(seed)
    verifier = ToyVerifier(SHAPE)
    model = ReadySource(ToyVerifier(SHAPE, repetitive=int(random.integers(0, 3))))
    source = WeighedSource(ngrams(share_wrong=int(random.integers(1, 5))), model)
    engine = Engine(verifier, everything(SHAPE), source)
    prompt = random.integers(0, 12, 3).tolist()
    events = list(engine.generate(Request(prompt, 40)))
    engine.close()
    source.close()
    assert ids(events) == text(prompt, 40)
    assert events[-1].statistics.accepted > 5


def test_both_sessions_observe_and_close(clock: Clock) -> None:
    model = Counted(clock, 0.0)
    source = WeighedSource(ngrams(share_wrong=2), model)
    session = source.open("", [1, 2, 3])
    assert session.wants_top == 0
    assert session.model is not None
    assert source.cost.microseconds >= DraftCost().microseconds
    session.observe([4, 5], Outcome(), TopKLogits(()))
    session.close()
    inner = session.ngrams
    assert isinstance(inner, OracleSession)
    assert (inner.known, inner.closed) == (5, 1)
    assert [*session.model._translation.text] == [1, 2, 3, 4, 5]
    source.close()


def test_the_second_model_reads_no_text_while_it_does_not_pay(clock: Clock) -> None:
    """Its session is opened late, with the whole text so far, once a trial is due."""
    model = Counted(clock, 1.0)
    source = WeighedSource(ngrams(share_wrong=1), model)
    run(source, 40, token_seconds=0.05)
    whole = text([1, 2, 3], 24)
    session = source.open("", [1, 2, 3])
    assert session.model is None
    session.observe(whole[:2], Outcome(), TopKLogits(()))
    for gain in source._gains:
        gain.skipped = gain.interval
    (draft,) = source.propose([(session, 4)])
    assert session.model is not None
    assert [*session.model._translation.text] == [1, 2, 3, *whole[:2]]
    assert draft.weighed_seconds == 1.0
    source.close()


def test_the_time_that_is_weighed_here_is_not_charged_to_the_sequence(clock: Clock) -> None:
    """Or trials would make n-grams rest, which cost nothing."""
    model = Counted(clock, 0.04)
    verifier = ToyVerifier(SHAPE)
    source = WeighedSource(ngrams(share_wrong=0), model)
    costs = PassCosts.of([WidthCost(width, 0.004) for width in SHAPE.widths])
    engine = Engine(verifier, everything(SHAPE), source, costs=costs, clock=clock)
    events = list(engine.generate(Request([1, 2, 3], 40)))
    source.close()
    assert model.asked > 0
    assert len(verifier.passes_run) < 16, "n-grams rested"
    assert events[-1].statistics.accepted >= 25
