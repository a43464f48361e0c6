"""A process that yields: stopped with all that it has started, and gone with whoever started it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import until

from anespec.system.yielding_child import YieldingChild

SUPPORT = Path(__file__).parents[1] / "support"
PARENT = SUPPORT / "yielding_parent.py"
ADOPTER = pytest.param(
    (sys.executable, str(SUPPORT / "adopter.py")),
    marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt others"),
)


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def child() -> Iterator[YieldingChild]:
    it = YieldingChild("yielding_program", ("runs",))
    yield it
    it.kill()
    it.wait()


def test_it_has_the_lowest_priority_and_stops_with_what_it_has_started(child: YieldingChild) -> None:
    _, _, _, priority, helper = next(child.lines()).split()
    assert int(priority) == 19
    child.pause()
    child.pause()
    until(lambda: is_stopped(child.pid) and is_stopped(int(helper)))
    child.resume()
    until(lambda: not is_stopped(child.pid) and not is_stopped(int(helper)))


def test_its_clock_stands_still_while_it_is_stopped(child: YieldingChild) -> None:
    """What its clock leaves out is the time that it was stopped: no less than was seen, no more than passed.

    The real time is read before and after its clock, so a machine that is busy makes no difference.
    """
    lines = child.lines()
    next(lines)
    asked = time.perf_counter()
    child.pause()
    until(lambda: is_stopped(child.pid))
    stopped = time.perf_counter()
    time.sleep(0.2)
    resuming = time.perf_counter()
    child.resume()
    resumed = time.perf_counter()
    began = ended = clock = 0.0
    # Lines that were printed before the stop come first.
    while began < resuming:
        began, clock, ended = map(float, next(lines).split()[:3])
    assert began - clock <= resumed - asked
    assert ended - clock >= resuming - stopped
    assert clock < ended - 0.1, "it goes on as if it had not been stopped"


@pytest.mark.fast_only("running-orphaned")
@pytest.mark.parametrize("adopters", [(), ADOPTER], ids=["orphaned", "adopted"])
@pytest.mark.parametrize("state", ["running", "stopped"])
def test_it_ends_with_whoever_started_it(state: str, adopters: tuple[str, ...]) -> None:
    """By SIGKILL, which nobody can answer; a stopped process could not answer anything either."""
    command = [*adopters, sys.executable, str(PARENT), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            parent, pid, helper = map(int, started.stdout.readline().split())
            if state == "stopped":
                until(lambda: is_stopped(pid))
            psutil.Process(parent).kill()
            until(lambda: is_gone(pid) and is_gone(helper))
        finally:
            started.kill()


def test_what_it_had_started_is_gone_once_it_is_waited_for() -> None:
    child = YieldingChild("yielding_program", ("runs",))
    helper = int(next(child.lines()).split()[4])
    child.kill()
    assert child.wait() == "it was ended by SIGKILL"
    until(lambda: is_gone(helper))
    child.pause()  # whose number it is by now nobody knows
    child.kill()


def test_its_last_words_say_why_it_failed() -> None:
    child = YieldingChild("yielding_program", ("fails",))
    assert list(child.lines()) == []
    assert child.wait() == "it cannot go on"
