"""What a tenant's requests take of the time that all share, while others are served and while nobody is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
from patience import PATIENCE

from anespec.runtime.server.http.shares import (
    BURST,
    DEBT,
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


@contextlib.asynccontextmanager
async def preparing(shares: PreparationTime, tenant: str) -> AsyncIterator[None]:
    """The tenant prepares a request while the block lasts."""
    with shares.of(tenant) as share:
        await share.turn()
        yield


def test_whoever_was_alone_owes_nothing_to_those_who_come_later() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        await work(shares, time, "many", 1000.0)
        async with preparing(shares, "one"):
            assert await work(shares, time, "many", BURST / 2) == 0.0
            assert await work(shares, time, "many", 0.0) == 0.0

    run(scene)


def test_a_small_request_now_and_then_costs_the_others_no_more_than_its_own_time() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        for _ in range(20):
            await work(shares, time, "now and then", 0.001)
            waits = [await work(shares, time, "many", 0.02) for _ in range(45)]
            assert waits == [0.0] * 45

    run(scene)


async def use_up(shares: PreparationTime, time: Time, tenant: str, debt: float) -> None:
    """Let a tenant take all of its share, and more, beside another one."""
    async with preparing(shares, "another"):
        await work(shares, time, tenant, (BURST - REQUEST + debt) / (1 - SHARE))


def test_who_has_used_up_its_share_waits_until_the_other_has_prepared_and_no_longer() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        await use_up(shares, time, "many", 0.1)
        with shares.of("little") as little:
            assert shares.is_turn("many"), "the other one has only begun to send"
            await little.turn()
            assert not shares.is_turn("many")
            little.pause()
            assert shares.is_turn("many"), "the other one's answer is generated now"

    run(scene)


def test_a_pause_lets_those_who_wait_go_on_at_once() -> None:
    async def scene(_: PreparationTime, time: Time) -> None:
        shares = PreparationTime(time, lambda _: asyncio.Event().wait())
        await use_up(shares, time, "many", 0.1)
        with shares.of("many") as many, shares.of("little") as little:
            await little.turn()
            waiting = asyncio.ensure_future(many.turn())
            for _ in range(9):
                await asyncio.sleep(0)
            assert not waiting.done()
            little.pause()
            await asyncio.wait_for(waiting, PATIENCE)

    run(scene)


def test_who_waits_for_its_client_is_not_given_way_to() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        with shares.of("uploads slowly"):
            assert [await work(shares, time, "many", 3.0) for _ in range(9)] == [0.0] * 9

    run(scene)


def test_tenants_who_want_more_than_their_share_divide_all_the_time_evenly() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        used = {"one": 0.0, "two": 0.0}
        began = time.now

        async def all_the_time(tenant: str) -> None:
            while time.now < began + 60.0:
                with shares.of(tenant) as share:
                    await share.turn()
                    time.now += 0.1
                    used[tenant] += 0.1
                    share.pause()
                await asyncio.sleep(0)

        with shares.of("one") as one, shares.of("two") as two:
            await one.turn()
            await two.turn()
            time.now += 10.0
        await asyncio.gather(*map(all_the_time, used))
        assert used["one"] == pytest.approx(used["two"], rel=0.1)
        assert sum(used.values()) == pytest.approx(time.now - began - 10.0, rel=0.1), "no time is lost"

    run(scene)


def test_a_long_preparation_makes_others_wait_a_bounded_time() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        async with preparing(shares, "many"), preparing(shares, "long"):
            time.now += DEBT / 2
            waited = await work(shares, time, "many", 0.0)
        assert waited <= DEBT / SHARE

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
        async with preparing(shares, "one"):
            with shares.looking("many") as share:
                await share.turn()
                time.now += 2 * BURST
        async with preparing(shares, "another"):
            assert not shares.is_turn("many")

    run(scene)


def test_what_is_waited_for_takes_nobody_s_time() -> None:
    async def scene(shares: PreparationTime, time: Time) -> None:
        with shares.of("many") as share:
            for _ in range(50):
                async with preparing(shares, "one"):
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

        await use_up(shares, time, "many", 0.02)
        async with preparing(shares, "one"):
            await asyncio.gather(*(one_of_many() for _ in range(2)))
        assert begun[1] - begun[0] > 1.0

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
