"""The running estimate of what passes cost: it never falls with rows, follows a machine, and stays calm."""

from itertools import pairwise

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import slow_but
from test_draft_policy import TimedVerifier, costs
from toy import everything, ids

from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.passes import PassPlan
from anespec.runtime.speculation.cost_measurement import measure_pass_costs
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.speculation.running_costs import RECENT_PASSES, STALE_PASSES, RunningCosts

WIDTHS = (1, 2, 4, 8, 16)
seconds_of_a_pass = st.floats(1e-4, 10.0)
curves = st.lists(seconds_of_a_pass, min_size=len(WIDTHS), max_size=len(WIDTHS)).map(
    lambda found: PassCosts.of([WidthCost(*each) for each in zip(WIDTHS, found, strict=True)])
)
rising = st.lists(st.floats(1e-3, 1.0), min_size=len(WIDTHS), max_size=len(WIDTHS)).map(
    lambda steps: PassCosts.of([WidthCost(w, sum(steps[: i + 1])) for i, w in enumerate(WIDTHS)])
)
observations = st.lists(st.tuples(st.sampled_from(WIDTHS), seconds_of_a_pass), max_size=40)


def of_all(found: PassCosts) -> list[float]:
    return [found.seconds(width, 0) for width in WIDTHS]


@given(curves, observations)
def test_a_usable_width_never_costs_less_than_a_narrower_one(
    recorded: PassCosts, seen: list[tuple[int, float]]
) -> None:
    running = RunningCosts(recorded)
    for width, took in seen:
        running.observe(width, 0, took)
        current = running.current
        usable = [current.seconds(each, 0) for each in current.usable(WIDTHS)]
        assert all(b >= a * (1 - 1e-9) for a, b in pairwise(usable))
        assert all(np.isfinite(of_all(current)))


@given(rising, st.permutations(WIDTHS), st.floats(1e-4, 20.0))
def test_a_width_that_ran_once_still_follows_the_others(
    recorded: PassCosts, order: list[int], factor: float
) -> None:
    """A single pass says nothing yet, and takes nothing back of what other widths have said."""
    often, once, *_ = order
    running = RunningCosts(recorded)
    for _ in range(RECENT_PASSES):
        running.observe(often, 0, factor * recorded.seconds(often, 0))
    running.observe(once, 0, factor * recorded.seconds(once, 0))
    running.observe(often, 0, factor * recorded.seconds(often, 0))
    assert of_all(running.current) == pytest.approx([factor * each for each in of_all(recorded)])


@given(rising, st.sampled_from(WIDTHS), st.floats(0.1, 20.0))
def test_every_width_follows_a_machine_that_becomes_faster_or_slower(
    recorded: PassCosts, width: int, factor: float
) -> None:
    running = RunningCosts(recorded)
    for _ in range(RECENT_PASSES):
        running.observe(width, 0, recorded.seconds(width, 0))
    assert of_all(running.current) == pytest.approx(of_all(recorded))
    for _ in range(RECENT_PASSES):
        running.observe(width, 0, factor * recorded.seconds(width, 0))
    assert of_all(running.current) == pytest.approx([factor * each for each in of_all(recorded)])
    assert running.current.pace == pytest.approx(factor)


@given(rising, st.integers(3, 20), st.data(), st.floats(1e-3, 1e3))
def test_one_outlier_changes_nothing(
    recorded: PassCosts, passes: int, data: st.DataObject, outlier: float
) -> None:
    running, width = RunningCosts(recorded), data.draw(st.sampled_from(WIDTHS))
    place = data.draw(st.integers(0, passes))
    for number in range(passes + 1):
        running.observe(width, 0, recorded.seconds(width, 0) * (outlier if number == place else 1.0))
        assert of_all(running.current) == pytest.approx(of_all(recorded))


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(rising, rising, st.integers(0, 100))
def test_widths_that_run_are_known_whatever_was_recorded(
    recorded: PassCosts, truth: PassCosts, seed: int
) -> None:
    running, rng = RunningCosts(recorded), np.random.default_rng(seed)
    disturbed = False
    for _ in range(200):
        width = int(rng.choice(WIDTHS))
        # Never two passes in a row: where most recent passes are disturbed, the machine has become slower.
        disturbed = not disturbed and rng.random() < 0.3
        running.observe(width, 0, (3.0 if disturbed else 1.0) * truth.seconds(width, 0))
    assert of_all(running.current) == pytest.approx(of_all(truth), rel=1e-6)


def test_a_width_is_due_again_after_ever_more_passes_of_others() -> None:
    running = RunningCosts(costs(dict.fromkeys(WIDTHS, 1.0)))
    trials = []
    for number in range(2000):
        width = 1 if running.overdue(1) else 4
        running.observe(width, 0, 1e-3)
        trials += [number] if width == 1 else []
    assert len(trials) <= 0.01 * 2000
    assert trials[0] <= STALE_PASSES
    assert trials[-1] > 1000


def test_what_is_learned_is_the_fastest_curve_and_no_slower_than_what_was_recorded() -> None:
    recorded = costs({1: 2.0, 2: 2.0, 4: 2.0, 8: 1.9, 16: 4.0})
    running = RunningCosts(recorded)
    assert running.learned is None
    for busy in (1.0, 5.0):
        for _ in range(40):
            for width, took in zip(WIDTHS, (1.0, 1.1, 1.4, 2.0, 3.0), strict=True):
                running.observe(width, 0, 1e-3 * took * busy)
    learned = running.learned
    assert learned is not None
    assert of_all(learned) == pytest.approx([1e-3, 1.1e-3, 1.4e-3, 2e-3, 3e-3])
    slower = RunningCosts(recorded)
    for _ in range(40):
        for width in WIDTHS:
            slower.observe(width, 0, 10.0 * width)
    assert slower.learned is not None
    assert sum(of_all(slower.learned)) == pytest.approx(sum(of_all(recorded)))
    assert slower.learned.seconds(16, 0) == pytest.approx(16 * slower.learned.seconds(1, 0))


class BusyVerifier(TimedVerifier):
    """A toy on a machine that becomes busy for a while, again and again, and disturbs single passes."""

    def __init__(self, known: PassCosts, repetitive: int = 0) -> None:
        super().__init__(known, repetitive)
        self._rng = np.random.default_rng(5)

    def forward(self, plan: PassPlan) -> object:
        before = self.now
        found = super().forward(plan)
        took = self.now - before
        busy = 2.5 if len(self.passes_run) // 150 % 2 else 1.0
        self.now = before + took * busy * self._rng.choice([1.0, 1.0, 1.0, 2.0])
        return found


WRONG = {
    "as recorded on a busy machine": {1: 2.0, 2: 1.98, 4: 2.3, 8: 2.1, 16: 3.0, 32: 6.0, 64: 12.0},
    "as if rows were free": dict.fromkeys((1, 2, 4, 8, 16, 32, 64), 1.0),
    "as if they were dear": {width: float(width) for width in (1, 2, 4, 8, 16, 32, 64)},
}
TRUE = {1: 1.0, 2: 1.7, 4: 2.9, 8: 5.0, 16: 9.0, 32: 17.0, 64: 33.0}


@pytest.mark.slow
@pytest.mark.parametrize("recorded", slow_but(WRONG.values(), WRONG["as if rows were free"]), ids=WRONG)
@pytest.mark.parametrize("repetitive", slow_but([0, 12], 0))
def test_guesses_cost_at_most_two_percent_whatever_was_recorded_also_under_load(
    recorded: dict[int, float], repetitive: int
) -> None:
    def run(source: LookupSource | None) -> tuple[float, list[int]]:
        verifier = BusyVerifier(costs(TRUE), repetitive)
        running = RunningCosts(costs(recorded))
        engine = Engine(verifier, everything(verifier.shape), source, costs=running, clock=verifier.time)
        events = list(engine.generate(Request(tuple(range(40)), 900)))
        engine.close()
        # What the machine was busy with is no matter of ours: only passes count, at their true costs.
        widths = [plan.width for plan in verifier.passes_run]
        return sum(TRUE[width] for width in widths), ids(events)

    plain, tokens = run(None)
    took, same = run(LookupSource())
    assert same == tokens
    assert plain / took >= 0.98


def test_a_curve_that_falls_is_measured_again() -> None:
    """Two widths were disturbed in every round of the first measurement."""

    class Disturbed(TimedVerifier):
        def forward(self, plan: PassPlan) -> object:
            if plan.width == 4 and sum(each.width == 4 for each in self.passes_run) < 8:
                self.now += 0.05
            return super().forward(plan)

    known = costs(TRUE)
    verifier = Disturbed(known)
    found = measure_pass_costs(verifier, everything(verifier.shape), clock=verifier.time)
    assert [cost.seconds for cost in found.widths] == pytest.approx([1e-3 * each for each in TRUE.values()])


def test_a_width_that_a_wider_one_beats_clearly_is_no_mistake() -> None:
    """A Neural Engine runs the shape that a program was made for; a narrower one runs on the processor."""
    recorded = costs({1: 300.0, 2: 60.0, 4: 58.0, 8: 90.0})
    running = RunningCosts(recorded)
    assert running.current.usable((1, 2, 4, 8)) == (2, 4, 8)
    assert running.current.seconds(1, 0) == pytest.approx(0.3)
    assert running.current.seconds(2, 0) == running.current.seconds(4, 0) == pytest.approx(0.059)
