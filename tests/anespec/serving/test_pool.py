"""Models come when they are asked for, go when others need the room, and are never taken from who has one."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from patience import PATIENCE

from anespec.models.memory_limit import MemoryLimit
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.http.errors import ApiError, api_error
from anespec.runtime.server.models import Loaded
from anespec.serving.loading import FileMarks, Found, ResidentModel
from anespec.serving.pool import ModelLoadError, ModelPool
from anespec.serving.sources import ModelSource
from anespec.system.errors import ArtifactError, UsageError

T = TypeVar("T")


@dataclass
class FakeModel:
    """A model of which a test sees whether it is in memory."""

    name: str
    version: str
    is_open: bool = True
    context: int = 64
    checking: str | None = None

    def stop(self) -> None:
        pass

    def close(self) -> None:
        assert self.is_open
        self.is_open = False


@dataclass
class FakeLoader:
    """Artifacts by path: a version and a size each; a load waits until its gate is open.

    `begun` are the loads that have begun.
    """

    sizes: dict[str, int]
    versions: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    files: dict[str, FileMarks] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    made: list[FakeModel] = field(default_factory=list)

    def find(self, source: ModelSource) -> Found:
        name = source.path.name
        if name in self.failures:
            raise self.failures[name]
        return Found(
            source.path, self.versions.get(name, "1"), self.sizes[name], self.files.get(name, FileMarks())
        )

    def load(self, source: ModelSource, found: Found) -> ResidentModel:
        name = source.path.name
        self.begun.append(name)
        if name in self.gates:
            assert self.gates[name].wait(PATIENCE)
        model = FakeModel(name, found.fingerprint)
        self.made.append(model)
        return cast(ResidentModel, model)

    @property
    def in_memory(self) -> list[str]:
        return [model.name for model in self.made if model.is_open]


@dataclass(frozen=True)
class CountingLimit(MemoryLimit):
    """A limit that counts how often a model had no room; whoever asked then waits for some."""

    refusals: list[int] = field(default_factory=list)

    def holds(self, taken: int, more: int) -> bool:
        held = super().holds(taken, more)
        if not held:
            self.refusals.append(more)
        return held


def sources(*names: str) -> dict[str, ModelSource]:
    return {name: ModelSource(Path("/models") / name, LoadOptions()) for name in names}


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def within() -> T:
        async with asyncio.timeout(PATIENCE):
            return await work()

    return asyncio.run(within())


async def use(pool: ModelPool, name: str | None) -> FakeModel:
    async with pool.lease(name) as leased:
        return cast(Any, leased.model)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_those_who_want_one_model_wait_for_one_load_while_others_are_served() -> None:
    loader = FakeLoader({"a": 1, "b": 1}, gates={"b": threading.Event()})

    async def work() -> None:
        pool = ModelPool(sources("a", "b"), loader)
        waiting = [asyncio.create_task(use(pool, "b")) for _ in range(3)]
        assert (await use(pool, None)).name == "a"
        assert [(card.id, card.loaded) for card in pool.cards] == [("a", True), ("b", False)]
        loader.gates["b"].set()
        found = await asyncio.gather(*waiting)
        assert len({id(model) for model in found}) == 1
        assert [model.name for model in loader.made] == ["a", "b"]
        assert list(pool.loaded) == ["a", "b"]
        await pool.close()

    run(work)


def test_one_who_goes_away_does_not_take_the_load_from_the_others() -> None:
    loader = FakeLoader({"a": 1}, gates={"a": threading.Event()})

    async def work() -> None:
        pool = ModelPool(sources("a"), loader)
        gone, stays = (asyncio.create_task(use(pool, "a")) for _ in range(2))
        await until(lambda: pool._served["a"].wanted == 2)
        gone.cancel()
        await asyncio.wait([gone])
        assert gone.cancelled() and not stays.done()
        loader.gates["a"].set()
        assert (await stays).is_open
        assert len(loader.made) == 1

    run(work)


def test_who_waits_no_longer_does_not_take_the_load_from_the_others() -> None:
    loader = FakeLoader({"a": 1}, gates={"a": threading.Event()})

    async def briefly(loaded: Loaded) -> None:
        async with asyncio.timeout(0.01):
            await loaded()

    async def work() -> None:
        pool = ModelPool(sources("a"), loader)
        stays = asyncio.create_task(use(pool, "a"))
        with pytest.raises(TimeoutError):
            async with pool.lease("a", briefly):
                pytest.fail("it is not there")
        assert pool._served["a"].wanted == 1
        loader.gates["a"].set()
        assert (await stays).is_open
        assert len(loader.made) == 1
        async with pool.lease("a", lambda loaded: pytest.fail("nobody waits for what is there")):
            pass

    run(work)


def test_a_failure_is_told_to_all_and_can_be_tried_again() -> None:
    loader = FakeLoader({"a": 1}, failures={"a": ArtifactError("/models/a: the shard is missing")})

    async def work() -> None:
        pool = ModelPool(sources("a"), loader)
        found = await asyncio.gather(use(pool, "a"), use(pool, "a"), return_exceptions=True)
        for error in found:
            assert isinstance(error, ModelLoadError)
            assert str(error) == "the model a cannot be loaded: a: the shard is missing"
            assert isinstance(error.__cause__, ArtifactError)
            assert api_error(error).status == 500
        del loader.failures["a"]
        assert (await use(pool, "a")).name == "a"

    run(work)


@pytest.mark.parametrize(
    "said", ["/cache/0123/a.anespec: the shard is missing", "a: the shard layers/0 is missing"]
)
def test_why_a_model_cannot_be_loaded_is_told_without_a_path(said: str) -> None:
    loader = FakeLoader({"a": 1}, failures={"a": ArtifactError(said)})

    async def work() -> None:
        with pytest.raises(ModelLoadError) as failed:
            await use(ModelPool(sources("a"), loader), "a")
        told = "the model a cannot be loaded: the server's log says why"
        assert api_error(failed.value).message == str(failed.value) == told
        assert str(failed.value.__cause__) == said

    run(work)


def test_a_failure_that_nobody_waits_for_any_more_stands_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = FakeLoader({"a": 1}, gates={"a": threading.Event()})

    def fail(source: ModelSource, found: Found) -> ResidentModel:
        loader.begun.append("a")
        assert loader.gates["a"].wait(PATIENCE)
        raise ArtifactError("the shard is missing")

    async def work() -> None:
        pool = ModelPool(sources("a"), loader)
        asking = asyncio.create_task(use(pool, "a"))
        await until(lambda: loader.begun == ["a"])
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        loader.gates["a"].set()
        await until(lambda: "a cannot be loaded: the shard is missing" in caplog.text)

    loader.load = fail  # type: ignore[method-assign]
    run(work)


def test_no_such_model() -> None:
    async def work() -> None:
        with pytest.raises(ApiError) as refused:
            await use(ModelPool(sources("a", "c"), FakeLoader({})), "b")
        assert refused.value.status == 404
        assert refused.value.message == "there is no model 'b'; this server has a and c"

    run(work)


def test_what_was_used_longest_ago_gives_way() -> None:
    loader = FakeLoader({"a": 4, "b": 4, "c": 4})

    async def work() -> None:
        pool = ModelPool(sources("a", "b", "c"), loader, MemoryLimit(9), room_seconds=PATIENCE)
        for name in ("a", "b", "a", "c"):
            await use(pool, name)
        assert loader.in_memory == ["a", "c"]
        await use(pool, "b")
        assert loader.in_memory == ["c", "b"]
        assert list(pool.loaded) == ["b", "c"]

    run(work)


def test_one_that_is_held_stays_and_the_other_waits() -> None:
    loader = FakeLoader({"a": 6, "b": 6})

    async def work() -> None:
        limit = CountingLimit(9)
        pool = ModelPool(sources("a", "b"), loader, limit, room_seconds=PATIENCE)
        async with pool.lease("a") as leased:
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: bool(limit.refusals))
            assert not waiting.done()
            assert cast(Any, leased.model).is_open
        assert (await waiting).name == "b"
        assert loader.in_memory == ["b"]

    run(work)


def test_requests_that_overlap_do_not_keep_another_model_out() -> None:
    loader = FakeLoader({"a": 5, "b": 5})
    # A turn ends when this test says so, and not before, however slow the machine is.
    turn, now = PATIENCE, 0.0

    async def work() -> None:
        nonlocal now
        limit, served = CountingLimit(9), 0
        pool = ModelPool(
            sources("a", "b"), loader, limit, room_seconds=1e9, turn_seconds=turn, clock=lambda: now
        )

        async def keep_asking(name: str, length: int) -> None:
            nonlocal served
            while True:
                async with pool.lease(name) as leased:
                    # An answer takes so many turns of the event loop, so that answers overlap.
                    for _ in range(length):
                        await asyncio.sleep(0)
                    assert cast(Any, leased.model).is_open, "an answer that runs is completed"
                    served += 1

        async def use_once(name: str) -> None:
            async with pool.lease(name) as leased:
                model = cast(Any, leased.model)
                assert model.name == name and model.is_open
                assert loader.in_memory == [name]

        asking = [asyncio.create_task(keep_asking("a", length)) for length in (5, 7, 11)]
        for _ in range(3):
            before = served
            await until(lambda before=before: served > before)
            limit.refusals.clear()
            waiting = asyncio.create_task(use_once("b"))
            await until(lambda: bool(limit.refusals))
            before = served
            await until(lambda before=before: served > before + 10)
            assert not waiting.done() and loader.in_memory == ["a"], "its turn is not over"
            while not waiting.done():
                # The others want their model again at once, and may be the first to find room.
                now, before = now + turn, served
                await until(lambda waiting=waiting, before=before: waiting.done() or served > before)
            await waiting
        before = served
        await until(lambda: served > before)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await pool.close()

    run(work)


def test_nobody_waits_for_room_for_ever() -> None:
    loader = FakeLoader({"a": 6, "b": 6})

    async def work() -> None:
        pool = ModelPool(sources("a", "b"), loader, MemoryLimit(9), room_seconds=0.02)
        async with pool.lease("a"):
            with pytest.raises(ApiError) as refused:
                await use(pool, "b")
        assert (refused.value.status, refused.value.code) == (503, "no_room")
        assert "retry-after" in refused.value.headers
        # Now there is room once `a` is closed, however long that takes.
        pool._residents._room_seconds = PATIENCE
        assert (await use(pool, "b")).name == "b"

    run(work)


def test_one_that_never_fits_is_refused_at_once_and_takes_nobodys_place() -> None:
    loader = FakeLoader({"a": 6, "b": 60})

    async def work() -> None:
        pool = ModelPool(sources("a", "b"), loader, MemoryLimit(9))
        await use(pool, "a")
        with pytest.raises(ModelLoadError, match="--memory") as refused:
            await use(pool, "b")
        assert isinstance(refused.value.__cause__, UsageError)
        assert loader.in_memory == ["a"]

    run(work)


def test_without_a_limit_of_somebodys_one_alone_may_be_larger() -> None:
    loader = FakeLoader({"a": 6, "b": 60})

    async def work() -> None:
        limit = MemoryLimit(9, is_firm=False)
        pool = ModelPool(sources("a", "b"), loader, limit, room_seconds=PATIENCE)
        await use(pool, "a")
        await use(pool, "b")
        assert loader.in_memory == ["b"]

    run(work)


def test_a_changed_artifact_is_opened_anew_and_the_old_one_goes_after_its_last_user() -> None:
    loader = FakeLoader({"a": 1, "b": 1})

    async def work() -> None:
        pool = ModelPool(sources("a", "b"), loader)
        await use(pool, "b")
        async with pool.lease("a") as old:
            loader.versions["a"] = "2"
            await pool.reload()
            assert (await use(pool, "a")).version == "2"
            assert cast(Any, old.model).is_open
        await until(lambda: not cast(Any, old.model).is_open)
        assert [(model.name, model.version) for model in loader.made] == [("b", "1"), ("a", "1"), ("a", "2")]
        assert len(loader.in_memory) == 2

    run(work)


def test_an_unreadable_one_stays_as_it_was() -> None:
    loader = FakeLoader({"a": 1})

    async def work() -> None:
        pool = ModelPool(sources("a"), loader)
        before = await use(pool, "a")
        loader.failures["a"] = ArtifactError("half of it")
        await pool.reload()
        assert await use(pool, "a") is before

    run(work)


def test_a_reload_takes_new_names_and_drops_old_ones() -> None:
    loader = FakeLoader({"a": 1, "b": 1, "c": 1})
    served = sources("a", "b")

    async def work() -> None:
        pool = ModelPool(served, loader, reread=lambda: served)
        kept, dropped = await use(pool, "a"), await use(pool, "b")
        del served["b"]
        served.update(sources("c"))
        await pool.reload()
        await until(lambda: not dropped.is_open)
        assert [card.id for card in pool.cards] == ["a", "c"]
        assert await use(pool, "a") is kept
        with pytest.raises(ApiError):
            await use(pool, "b")

    run(work)


def test_a_reload_that_cannot_be_read_changes_nothing() -> None:
    def refuse() -> dict[str, ModelSource]:
        raise UsageError("serve.toml: no TOML")

    async def work() -> None:
        pool = ModelPool(sources("a"), FakeLoader({"a": 1}), reread=refuse)
        before = await use(pool, "a")
        await pool.reload()
        assert await use(pool, "a") is before

    run(work)


def test_what_is_written_into_is_loaded_anew_and_what_is_gone_is_not(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("anespec.serving.residents.SECONDS_BETWEEN_LOOKS", 0.0)
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    loader = FakeLoader({"a": 1}, files={"a": FileMarks.below([tmp_path])})

    async def work() -> None:
        pool = ModelPool(sources("a"), loader)
        first = await use(pool, "a")
        file.rename(tmp_path / "elsewhere")
        assert await use(pool, "a") is first
        file.write_bytes(b"another file")
        assert await use(pool, "a") is first
        (tmp_path / "elsewhere").rename(file)
        file.write_bytes(b"two in its place")
        loader.files["a"] = FileMarks.below([tmp_path])
        second = await use(pool, "a")
        assert second is not first
        assert await use(pool, "a") is second

    run(work)


def test_who_waits_for_a_load_that_is_given_up_is_told_and_the_others_stay() -> None:
    loader = FakeLoader({"a": 1, "b": 1}, gates={"b": threading.Event()})

    async def work() -> None:
        pool = ModelPool(sources("a", "b"), loader)
        async with pool.lease("a") as leased:
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: "b" in loader.begun)
            pool.stop_loading()
            with pytest.raises(ApiError, match="shutting down"):
                await waiting
            assert cast(Any, leased.model).is_open
        loader.gates["b"].set()
        await pool.close()

    run(work)


def test_closing_ends_all_and_whoever_still_waits_is_told() -> None:
    loader = FakeLoader({"a": 1, "b": 1}, gates={"b": threading.Event()})

    async def work() -> None:
        pool = ModelPool(sources("a", "b"), loader)
        async with pool.lease("a"):
            waiting = asyncio.create_task(use(pool, "b"))
            await until(lambda: "b" in loader.begun)
            await pool.close()
        with pytest.raises(ApiError, match="shutting down"):
            await waiting
        with pytest.raises(ApiError, match="shutting down"):
            await use(pool, "a")
        assert pool.loaded == {}
        # What comes after all is closed, too.
        loader.gates["b"].set()
        await until(lambda: [model.name for model in loader.made if not model.is_open] == ["b"])

    run(work)
