"""Who may wait, and what is told to those who may not."""

import pytest

from anespec.runtime.engine.room import MIN_RETRY_SECONDS, QueueFullError, QueueLimit
from anespec.system.errors import RequestError


class Running(dict[str, int]):
    """How many run, by tenant."""

    def __call__(self, tenant: str) -> int:
        return self.get(tenant, 0)


def test_the_first_ones_wait_for_nobody_and_the_others_are_counted() -> None:
    room = QueueLimit(capacity=2, most_waiting=3, running=Running())
    for taken, waiting in enumerate([0, 0, 1, 2, 3], start=1):
        room.take({"a": 1})
        assert room.waiting == waiting, taken
    with pytest.raises(QueueFullError, match="more than 3 requests would wait"):
        room.take({"a": 1})
    room.leave("a", 0.0)
    room.take({"a": 1})
    assert room.waiting == 3


def test_all_of_a_request_s_choices_are_taken_or_none() -> None:
    room = QueueLimit(capacity=2, most_waiting=3, running=Running())
    room.take({"a": 3})
    with pytest.raises(QueueFullError, match="more than 3 requests would wait"):
        room.take({"a": 3})
    assert room.waiting == 1
    room.take({"a": 2})
    assert room.waiting == 3


def test_more_than_can_ever_wait_is_a_wrong_request() -> None:
    room = QueueLimit(capacity=2, most_waiting=3, running=Running())
    with pytest.raises(RequestError, match="6 answers are asked for at once, but only 5") as caught:
        room.take({"a": 6})
    assert not isinstance(caught.value, QueueFullError)
    with pytest.raises(QueueFullError):
        room.require({"a": 6})
    room.take({"a": 5})


def test_an_owner_who_fills_the_queue_leaves_room_for_others() -> None:
    running = Running(a=2)
    room = QueueLimit(capacity=2, most_waiting=3, running=running)
    room.take({"a": 5})
    with pytest.raises(QueueFullError):
        room.take({"a": 1})
    room.take({"b": 3})
    with pytest.raises(QueueFullError, match="more than 3 requests would wait"):
        room.take({"b": 1})
    # One of the first tenant's has ended, and one of the second's began.
    room.leave("a", 1.0)
    running.update(a=1, b=1)
    room.take({"b": 1})
    with pytest.raises(QueueFullError):
        room.take({"a": 1})


def test_without_a_limit_any_number_may_wait() -> None:
    room = QueueLimit(capacity=1, most_waiting=None, running=Running())
    room.take({"a": 10_000})
    assert room.waiting == 9_999


def test_what_is_told_of_when_there_is_room_follows_how_long_requests_lately_ran() -> None:
    room = QueueLimit(capacity=4, most_waiting=2, running=Running())
    room.take({"a": 6})
    told = []
    for ran in [None, 40.0, 0.0, *[8.0] * 60]:
        if ran is not None:
            room.leave("a", ran)
            room.take({"a": 1})
        with pytest.raises(QueueFullError) as caught:
            room.require({"a": 1})
        told.append(caught.value.retry_after)
    # Nothing known; 40 s in each of four regions; one that never ran says nothing; then 8 s.
    assert told[:3] == [MIN_RETRY_SECONDS, 10.0, 10.0]
    assert told[1:] == sorted(told[1:], reverse=True)
    assert told[-1] == pytest.approx(2, 0.05)
    with pytest.raises(QueueFullError) as caught:
        room.require({"a": 3})
    assert caught.value.retry_after == pytest.approx(6, 0.05)
