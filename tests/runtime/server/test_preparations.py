"""Before a request waits for the model it is prepared: a tenant's many do not hold up another's one."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from anespec.runtime.engine.requests import Principal
from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.server.daemon import LARGE_REQUEST_BYTES, Preparations
from anespec.runtime.server.models import Leased

MANY, ONE = Principal("many"), Principal("one")


@dataclass
class Model:
    """Has room for so many requests of each tenant."""

    room: int
    asked: list[int] = field(default_factory=list)

    def require_room(self, caller: Principal, ahead: int, count: int) -> None:
        self.asked.append(ahead)
        if ahead + count > self.room:
            raise QueueFullError(self.room, 1.0)


def leased(model: Model, id: str = "model") -> Leased:
    return cast(Leased, type("Held", (), {"id": id, "model": model}))


async def settled() -> None:
    """Let all tasks go on until each waits for what this one does; none of them waits for anything else."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_an_owner_prepares_so_many_at_a_time_and_another_one_beside_them() -> None:
    async def scene() -> None:
        preparations, model = Preparations(at_once=2), Model(room=5)
        begun: list[str] = []
        leave = asyncio.Event()

        async def prepare(caller: Principal) -> None:
            async with preparations.turn(leased(model), caller):
                begun.append(caller.tenant)
                await leave.wait()

        async with asyncio.TaskGroup() as tasks:
            for caller in (MANY, MANY, MANY, MANY, MANY, ONE):
                tasks.create_task(prepare(caller))
            await settled()
            assert begun == ["many", "many", "one"]
            with pytest.raises(QueueFullError):
                await prepare(MANY)
            leave.set()
        assert begun.count("many") == 5
        assert model.asked == [0, 1, 2, 3, 4, 0, 5]
        assert not preparations._tenants

    asyncio.run(scene())


def test_all_answers_of_a_request_count_while_it_is_prepared() -> None:
    async def scene() -> None:
        preparations, model = Preparations(), Model(room=5)
        async with preparations.turn(leased(model), MANY, 0, 3):
            with pytest.raises(QueueFullError):
                async with preparations.turn(leased(model), MANY, 0, 3):
                    pass
            async with preparations.turn(leased(model), MANY, 0, 2):
                pass
        assert model.asked == [0, 3, 3]

    asyncio.run(scene())


def test_large_requests_are_worked_on_one_by_one_of_each_owner_and_few_of_all() -> None:
    async def scene() -> None:
        preparations = Preparations(at_once=3)
        begun: list[str] = []
        leave = asyncio.Event()

        async def work(tenant: str, size: int) -> None:
            async with preparations.thread(Principal(tenant), size):
                begun.append(tenant)
                await leave.wait()

        async with asyncio.TaskGroup() as tasks:
            for tenant in ("a", "a", "a", "b", "c"):
                tasks.create_task(work(tenant, LARGE_REQUEST_BYTES))
            await settled()
            assert begun == ["a", "b"]
            # What is small waits for none of them.
            tasks.create_task(work("a", LARGE_REQUEST_BYTES - 1))
            await settled()
            assert begun == ["a", "b", "a"]
            leave.set()
        assert sorted(begun) == ["a", "a", "a", "a", "b", "c"]

    asyncio.run(scene())


def test_what_fails_or_is_given_up_leaves_its_place() -> None:
    async def scene() -> None:
        preparations, model = Preparations(at_once=1), Model(room=2)

        async def wait() -> None:
            async with preparations.turn(leased(model), ONE):
                await asyncio.sleep(60)

        waiting = [asyncio.create_task(wait()) for _ in range(2)]
        await settled()
        with pytest.raises(QueueFullError):
            await wait()
        async with preparations.turn(leased(model, "other"), MANY):
            pass
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(ZeroDivisionError):
            async with preparations.turn(leased(model), ONE):
                raise ZeroDivisionError
        assert not preparations._tenants

    asyncio.run(scene())
