"""A check gets its share of the time however many requests run, and nobody waits long for it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from anespec.checking.background import LONGEST_SLICE, SHARE, SLICE, Check, Checks, CheckSlices
from anespec.system.yielding_child import YieldingChild


@dataclass
class Simulated:
    """A check's process that runs while it is not stopped, and the clock that both read."""

    now: float = 0.0
    ran: float = 0.0
    runs: bool = True
    waits: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def pause(self) -> None:
        self.runs = False

    def resume(self) -> None:
        self.runs = True

    def kill(self) -> None:
        self.runs = False

    def goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.ran += seconds if self.runs else 0.0

    def wait_for(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        assert seconds is not None
        self.waits.append(seconds)
        self.goes_by(seconds)
        return condition()


def begun(child: Simulated) -> Checks:
    checks = Checks(child.clock)
    cast(Any, checks._changed).wait_for = child.wait_for
    check = cast(Check, type("Stub", (), {"is_stopped": False})())
    checks.run_child(check, cast(YieldingChild, child))
    return checks


def run_passes(checks: Checks, child: Simulated, seconds: float, until: float) -> float:
    """Run passes of so many seconds without an end; by how many times a pass is longer than that."""
    began, passes = child.now, 0
    checks.tell_busy(True)
    while child.now < until:
        checks.make_way(lambda: None)
        assert not child.runs, "nothing runs beside a pass"
        child.goes_by(seconds)
        passes += 1
    checks.tell_busy(False)
    return (child.now - began) / (passes * seconds)


@pytest.mark.fast_only("3.0")
@pytest.mark.parametrize("seconds", [0.001, 0.03, 0.5, 3.0])
def test_a_check_gets_its_share_while_passes_follow_one_another(seconds: float) -> None:
    child = Simulated()
    longer = run_passes(begun(child), child, seconds, until=600.0)
    assert child.ran == pytest.approx(600.0 * SHARE, rel=0.15)
    assert longer <= 1.3
    assert max(child.waits) <= LONGEST_SLICE


def test_what_is_handed_out_does_not_wait_for_a_slice() -> None:
    child = Simulated()
    checks = begun(child)
    handed: list[bool] = []
    checks.tell_busy(True)
    checks.make_way(lambda: handed.append(child.runs))
    assert not handed
    child.goes_by(100.0)
    checks.make_way(lambda: handed.append(child.runs))
    assert handed == [False], "before the slice, once"
    checks.make_way(lambda: handed.append(child.runs))
    assert handed == [False]


def test_requests_with_pauses_between_them_wait_for_no_slice() -> None:
    """A person who types: the check runs while nothing is asked, and that is enough."""
    child = Simulated()
    checks = begun(child)
    for _ in range(100):
        run_passes(checks, child, 0.01, until=child.now + 1.0)
        child.goes_by(5.0)
    assert not child.waits


def test_short_gaps_between_requests_do_not_stand_for_a_slice() -> None:
    child = Simulated()
    checks = begun(child)
    for _ in range(1000):
        run_passes(checks, child, 0.01, until=child.now + 0.07)
        child.goes_by(0.001)
    assert sum(child.waits) > 0.8 * SHARE * child.now


def test_a_check_that_ends_in_its_slice_keeps_nobody_waiting() -> None:
    child = Simulated()
    checks = Checks(child.clock)
    check = cast(Check, type("Stub", (), {"is_stopped": False})())
    checks.run_child(check, cast(YieldingChild, child))
    checks.tell_busy(True)
    child.goes_by(1000.0)
    ended = threading.Thread(target=checks.end_turn)
    checks.make_way(ended.start)
    ended.join()
    checks.make_way(lambda: pytest.fail("there is no check any more"))


def test_several_models_wait_for_the_same_slice() -> None:
    """The second one's pass does not run beside what the first one waits for."""
    child = Simulated()
    checks = begun(child)
    seen: list[bool] = []
    checks.tell_busy(True)
    child.goes_by(1000.0)
    waited = child.wait_for

    def second_begins(condition: Callable[[], bool], seconds: float | None = None) -> bool:
        checks._changed.release()
        try:
            checks.tell_busy(True)
            seen.append(child.runs)
        finally:
            checks._changed.acquire()
        return waited(condition, seconds)

    cast(Any, checks._changed).wait_for = second_begins
    checks.make_way(lambda: None)
    assert seen == [True], "a slice goes on"
    assert not child.runs


def test_what_is_owed_has_a_bound() -> None:
    child = Simulated()
    slices = CheckSlices(child.clock)
    assert slices.due == 0.0
    slices.stop()
    child.goes_by(SLICE * (1 - SHARE) / SHARE - 0.01)
    assert slices.due == 0.0
    child.goes_by(0.02)
    assert slices.due == pytest.approx(SLICE, abs=0.01)
    child.goes_by(1e6)
    assert slices.due == LONGEST_SLICE
    slices.go_on()
    assert slices.due == 0.0
