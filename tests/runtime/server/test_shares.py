"""What a tenant's requests take of the time that all share, while others are served and while nobody is."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise

import pytest

from anespec.runtime.server.http.shares import (
    BURST,
    DEBT,
    LOOK_SECONDS,
    PRESENCE_SECONDS,
    REQUEST,
    SHARE,
    PreparationTime,
)


class Time:
    """Seconds that go on when somebody sleeps, or says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def work(shares: PreparationTime, time: Time, tenant: str, seconds: float) -> float:
    """Do so much for a request of the tenant; how long it waited for that."""
    with shares.of(tenant) as share:
        began = time.now
        await share.turn()
        waited = time.now - began
        time.now += seconds
        share.pause()
    return waited


def run(scene: Callable[[PreparationTime, Time], Coroutine[None, None, None]]) -> None:
    time = Time()
    asyncio.run(scene(PreparationTime(time, time.sleep), time))


def test_whoever_is_alone_waits_for_nobody() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        assert [await work(shares, time, "many", 3.0) for _ in range(9)] == [0.0] * 9

    run(scene)


def test_beside_another_one_an_owner_has_a_share_of_the_time() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        with shares.of("one"):
            began = time.now
            for _ in range(200):
                await work(shares, time, "many", 0.1)
            took = time.now - began
        assert took == pytest.approx((200 * (0.1 + REQUEST) - BURST) / SHARE, rel=0.05)

    run(scene)


def test_who_takes_little_never_waits_for_one_who_takes_much() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        for _ in range(20):
            await work(shares, time, "many", 2.0)
            assert await work(shares, time, "one", 0.01) == 0.0

    run(scene)


def test_who_only_looks_pays_for_it_and_keeps_nobody_waiting() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        with shares.looking("many"):
            assert [await work(shares, time, "one", 3.0) for _ in range(9)] == [0.0] * 9
        with shares.of("one"):
            began = time.now
            for _ in range(200):
                with shares.looking("many") as share:
                    await share.turn()
                    time.now += 0.1
            took = time.now - began
        assert took == pytest.approx((200 * 0.1 - BURST) / SHARE, rel=0.05)

    run(scene)


def test_a_client_between_two_requests_is_still_there() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        await work(shares, time, "many", 1000.0)
        await work(shares, time, "one", 0.0)
        assert (
            PRESENCE_SECONDS - LOOK_SECONDS
            <= await work(shares, time, "many", 0.0)
            <= PRESENCE_SECONDS + LOOK_SECONDS
        )

    run(scene)


def test_what_was_taken_is_not_paid_for_ever() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        await work(shares, time, "many", 1000.0)
        with shares.of("one"):
            assert await work(shares, time, "many", 0.0) == pytest.approx(DEBT / SHARE, rel=0.05)

    run(scene)


def test_what_is_waited_for_takes_nobody_s_time() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        with shares.of("many") as share, shares.of("one"):
            for _ in range(50):
                await share.turn()
                share.pause()
                time.now += 10.0
            began = time.now
            await share.turn()
            assert time.now == began

    run(scene)


def test_an_owner_s_requests_do_not_all_begin_as_soon_as_there_is_something_left() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        begun: list[float] = []

        async def one_of_many() -> None:
            with shares.of("many") as share:
                await share.turn()
                begun.append(time.now)
                time.now += 1.0
                share.pause()

        with shares.of("one"):
            await asyncio.gather(*(one_of_many() for _ in range(5)))
        gaps = [after - before for before, after in pairwise(begun)]
        assert min(gaps) > 1.0 + (1.0 - BURST) / SHARE / 2

    run(scene)


def test_owners_who_have_been_away_for_long_are_forgotten_and_begin_as_new_ones_do() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        for name in ("a", "b", "c"):
            await work(shares, time, name, 5.0)
        assert set(shares.known()) == {"a", "b", "c"}
        time.now += (BURST + DEBT) / SHARE
        with shares.of("d"), shares.of("e"):
            time.now += 1e6
            await work(shares, time, "new", 0.0)
            assert set(shares.known()) == {"d", "e", "new"}
            await work(shares, time, "a", BURST / 2)
            assert await work(shares, time, "a", 0.0) == 0.0

    run(scene)


def test_looking_takes_a_share_beside_others_and_keeps_nobody_s_requests_waiting() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        for _ in range(1000):
            await shares.look("")
        assert time.now == 100.0, "nobody else is served"
        time.now += (BURST + DEBT) / SHARE
        with shares.of("one"):
            began = time.now
            for _ in range(500):
                await shares.look("")
            assert time.now - began == pytest.approx((500 * REQUEST - BURST) / SHARE, rel=0.05)
            assert not shares.is_turn_to_look("")
            assert shares.is_turn_to_look("another")
            assert await work(shares, time, "", 0.01) == 0.0, "what it asks for waits for no look"

    run(scene)


def test_who_only_looks_is_nobody_to_give_way_to() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        await shares.look("")
        assert [await work(shares, time, "one", 3.0) for _ in range(9)] == [0.0] * 9

    run(scene)


def test_a_long_answer_to_a_look_counts_by_its_bytes() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        with shares.of("one"):
            await shares.look("")
            shares.looked("", 50_000_000)
            assert not shares.is_turn_to_look("")

    run(scene)
