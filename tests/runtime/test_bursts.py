"""Requests that reach an idle engine at nearly the same time begin in the same pass."""

import pytest
from stepping import Clock
from toy import ToyVerifier, everything, toy_shape

from anespec.runtime.engine.engine import GATHER_SHARE, Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.service import Service
from anespec.runtime.passes import PassPlan, RowKind
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost

SHAPE = toy_shape(sequences=3)
WIDTHS = everything(SHAPE).widths


def costs(seconds: float) -> PassCosts:
    """The narrowest pass takes `seconds`, and each wider one as much more."""
    return PassCosts.of([WidthCost(width, seconds * (i + 1)) for i, width in enumerate(WIDTHS)])


def prompt(rows: int, first: int = 0) -> Request:
    return Request([(first + i) % 12 for i in range(rows)], 4)


def begun(plan: PassPlan) -> int:
    """The number of prompts that begin in a pass."""
    return sum(row.kind is RowKind.PROMPT and row.position == 0 for row in plan.rows)


def test_an_idle_engine_holds_for_a_share_of_its_first_pass() -> None:
    clock = Clock()
    engine = Engine(ToyVerifier(SHAPE), everything(SHAPE), costs=costs(1.0), clock=clock)
    assert engine.hold_seconds == 0.0, "nobody waits"
    engine.submit(prompt(WIDTHS[0]))
    assert engine.hold_seconds == pytest.approx(GATHER_SHARE)
    clock.now += GATHER_SHARE / 2
    engine.submit(prompt(WIDTHS[-1] + 1))
    assert engine.hold_seconds == pytest.approx(GATHER_SHARE / 2), "from when the first one came"
    engine.submit(prompt(3))
    assert engine.hold_seconds == 0.0, "no region is left for another"


def test_a_longer_first_pass_is_held_for_longer_and_reused_tokens_do_not_count() -> None:
    clock = Clock()
    engine = Engine(ToyVerifier(SHAPE), everything(SHAPE), costs=costs(1.0), clock=clock)
    long = prompt(WIDTHS[-2] + 1)
    engine.submit(long)
    assert engine.hold_seconds == pytest.approx(len(WIDTHS) * GATHER_SHARE)
    while engine.busy:
        engine.step()
    engine.submit(long)
    assert engine.hold_seconds == pytest.approx(GATHER_SHARE)


def test_nobody_is_held_beside_a_running_sequence_or_without_costs_or_in_the_only_region() -> None:
    running = Engine(ToyVerifier(SHAPE), everything(SHAPE), costs=costs(1.0), clock=Clock())
    running.submit(prompt(2))
    running.step()
    running.submit(prompt(2))
    assert running.hold_seconds == 0.0
    for proven, known in ((everything(SHAPE), None), (Proven.nothing(SHAPE), costs(1.0))):
        engine = Engine(ToyVerifier(SHAPE), proven, costs=known, clock=Clock())
        engine.submit(prompt(2))
        assert engine.hold_seconds == 0.0


@pytest.mark.slow
def test_the_prompts_of_a_burst_run_in_the_same_passes() -> None:
    verifier = ToyVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE), costs=costs(100.0))) as service:
        streams = [service.submit(prompt(20, first)) for first in (0, 5)]
        ends = [list(stream)[-1] for stream in streams]
    assert all(end.finish for end in ends)
    assert begun(verifier.passes_run[0]) == 2
