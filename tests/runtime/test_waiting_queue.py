"""Nobody in the queue is kept from a turn: priorities first, then tenants in turn, then by arrival."""

from collections import Counter, deque

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyVerifier, everything, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.sequences import WaitingRequest
from anespec.runtime.engine.waiting_queue import WaitingQueue
from anespec.runtime.sampling import Sampler, SamplingParameters

SAMPLER = Sampler(SamplingParameters(), [1], 12)


def request(number: int, tenant: str = "", priority: int = 0) -> WaitingRequest:
    return WaitingRequest(number, Request([1], tenant=tenant, priority=priority), [1], SAMPLER, 0.0)


def begun(queue: WaitingQueue) -> WaitingRequest:
    waiting = next(queue.in_turn())
    queue.begin(waiting)
    return waiting


def test_a_thousand_requests_of_one_owner_do_not_hold_up_another() -> None:
    queue = WaitingQueue()
    for number in range(1000):
        queue.add(request(number, "many"))
    running = deque(begun(queue) for _ in range(4))
    queue.add(request(1000, "one"))
    queue.end("many")
    assert begun(queue).request.tenant == "one"
    assert [waiting.number for waiting in running] == [0, 1, 2, 3]


def test_regions_are_shared_by_owners_however_many_requests_they_have() -> None:
    queue = WaitingQueue()
    for number in range(60):
        queue.add(request(number, "abc"[0 if number < 50 else 1 + number % 2]))
    assert Counter(begun(queue).request.tenant for _ in range(6)) == {"a": 2, "b": 2, "c": 2}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcd"), st.integers(0, 1)),
        st.tuples(st.just("begin")),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
    ),
    max_size=80,
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(steps)
def test_priority_holds_owners_take_turns_and_each_one_s_order_is_kept(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    queue = WaitingQueue()
    waiting: dict[int, WaitingRequest] = {}
    running: list[WaitingRequest] = []
    for number, (what, *more) in enumerate(steps):
        if what == "add":
            waiting[number] = request(number, *more)
            queue.add(waiting[number])
        elif what == "remove" and waiting:
            gone = sorted(waiting)[more[0] % len(waiting)]
            assert queue.remove(gone) is waiting.pop(gone)
            assert queue.remove(gone) is None
        elif what == "end" and running:
            queue.end(running.pop(more[0] % len(running)).request.tenant)
        elif what == "begin" and waiting:
            found = begun(queue)
            tenant, priority = found.request.tenant, found.request.priority
            rivals = [each for each in waiting.values() if each.request.priority == priority]
            assert priority == max(each.request.priority for each in waiting.values())
            assert found.number == min(each.number for each in rivals if each.request.tenant == tenant)
            counts = Counter(each.request.tenant for each in running)
            assert counts[tenant] == min(counts[each.request.tenant] for each in rivals)
            running.append(waiting.pop(found.number))
        assert len(queue) == len(waiting)
        assert [each.number for each in queue] == sorted(waiting)
        assert {tenant: queue.running(tenant) for tenant in "abcd"} == {
            tenant: sum(each.request.tenant == tenant for each in running) for tenant in "abcd"
        }
    for gone in sorted(waiting):
        queue.remove(gone)
    for each in running:
        queue.end(each.request.tenant)
    assert not queue._tenants and not queue._lines


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=20),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=60),
    st.sampled_from(["", "z"]),
)
def test_whoever_has_nothing_running_is_passed_over_by_each_other_owner_once_at_most(
    before: list[tuple[str, bool]], after: list[tuple[str, int]], victim: str
) -> None:
    """However the others come and go: in `after`, one arrives, and then one of those that run may end."""
    queue, running = WaitingQueue(), deque[str]()
    for number, (tenant, begins) in enumerate(before):
        queue.add(request(number, tenant))
        if begins:
            running.append(begun(queue).request.tenant)
    queue.add(request(1000, victim))
    passed: Counter[str] = Counter()
    for number, (tenant, ends) in enumerate(after, start=2000):
        queue.add(request(number, tenant))
        for _ in range(min(ends, len(running))):
            queue.end(running.popleft())
        found = begun(queue)
        if found.number == 1000:
            return
        passed[found.request.tenant] += 1
        running.append(found.request.tenant)
        assert max(passed.values()) == 1


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), min_size=1, max_size=14),
    st.integers(1, 3),
    st.sampled_from([2, 4]),
)
def test_whoever_waits_is_served_and_an_owner_s_requests_begin_in_their_order(
    asked: list[tuple[str, int]], sequences: int, block: int
) -> None:
    shape = toy_shape(block=block, sequences=sequences)
    engine = Engine(ToyVerifier(shape), everything(shape))
    # Prompts that begin differently, since one that goes on from another waits for it.
    numbers = [
        engine.submit(Request([number % 12, number // 12], count, tenant=tenant))
        for number, (tenant, count) in enumerate(asked)
    ]
    first: list[int] = []
    while engine.busy:
        for event in engine.step():
            if event.sequence not in first:
                first.append(event.sequence)
    assert sorted(first) == numbers
    if sequences <= block:
        for tenant in "abc":
            own = [number for number, (name, _) in zip(numbers, asked, strict=True) if name == tenant]
            assert [number for number in first if number in own] == own
