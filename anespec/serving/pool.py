"""The models of a daemon: in memory while they are used, and as long as there is room."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from anespec.leaving import keep
from anespec.manifests.errors import AnespecError, UsageError
from anespec.manifests.formatting import bytes_text, duration_text
from anespec.runtime.server.errors import ApiError, ending
from anespec.runtime.server.models import Leased, ModelCard, ServingModel
from anespec.serving.room import MemoryLimit
from anespec.serving.sources import Found, Loader, ModelSource, Names, ResidentModel
from anespec.serving.threads import in_own_thread

ROOM_SECONDS = 30.0
"""How long a request waits until others are done with what is in its way."""

SECONDS_BETWEEN_LOOKS = 1.0
"""At a model's files, while it is asked for."""

_log = logging.getLogger("anespec.serve")


class ModelLoadError(AnespecError):
    """A model cannot be loaded; its cause says why, and this how a client is told."""


@dataclass(eq=False)
class _Resident:
    """A model in memory; a retired one goes once nobody uses it."""

    name: str
    found: Found
    model: ResidentModel
    leases: int = 0
    used: int = 0
    looked: float = field(default_factory=time.monotonic)
    is_retired: bool = False
    going: asyncio.Task[None] | None = None


@dataclass(eq=False)
class _Served:
    """What is served under a name. `wanted`: requests that wait for it to be loaded."""

    name: str
    source: ModelSource
    created: int
    resident: _Resident | None = None
    loading: asyncio.Task[None] | None = None
    wanted: int = 0


class ModelPool:
    """Models by name; the first is the default. Belongs to the event loop (see runtime.server.models)."""

    def __init__(
        self,
        sources: Names,
        loader: Loader,
        limit: MemoryLimit | None = None,
        *,
        reread: Callable[[], Names] | None = None,
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        """Nothing is loaded yet. `reread` says at a reload what is served then; it is called in a thread."""
        self._served = {name: _served(name, source) for name, source in sources.items()}
        self._loader = loader
        self._limit = limit
        self._reread = reread
        self._room_seconds = room_seconds
        self._residents: list[_Resident] = []
        self._reserved = 0
        self._uses = itertools.count(1)
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def names(self) -> Sequence[str]:
        """The names that are served, the default first."""
        return tuple(self._served)

    @property
    def cards(self) -> Sequence[ModelCard]:
        """Those that can be asked for."""
        return [
            ModelCard(
                each.name,
                each.created,
                each.resident is not None,
                None if each.resident is None else each.resident.model.context,
            )
            for each in self._served.values()
        ]

    @property
    def loaded(self) -> Mapping[str, ServingModel]:
        """Those in memory."""
        return {each.name: each.resident.model for each in self._served.values() if each.resident is not None}

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[Leased]:
        """Hold a model; see `Models.lease`.

        Raises on entering:
            ApiError: there is no such model (404), there is no room for it (503), or the daemon ends (503).
            ModelLoadError: it cannot be loaded.
        """
        resident = await self._hold(name)
        try:
            yield Leased(resident.name, resident.model)
        finally:
            resident.leases -= 1
            resident.used = next(self._uses)
            if resident.is_retired and not resident.leases:
                self._send_away(resident)
            self._tell_change()

    async def _hold(self, name: str | None) -> _Resident:
        while True:
            served = self._named(name)
            resident = served.resident
            if resident is None:
                await self._wait_for(served)
            elif await self._is_sound(resident) and not resident.is_retired:
                resident.leases += 1
                return resident

    def _named(self, name: str | None) -> _Served:
        if self._closed:
            raise ending()
        found = self._served.get(name or next(iter(self._served)))
        if found is None:
            raise ApiError(
                404,
                f"there is no model {name!r}; /v1/models lists those that there are",
                "model_not_found",
                "model",
            )
        return found

    async def _wait_for(self, served: _Served) -> None:
        """Until it was loaded; whoever comes meanwhile waits for the same."""
        if served.loading is None:
            served.loading = asyncio.create_task(self._bring(served))
            served.loading.add_done_callback(lambda task: _forget_loading(served, task))
        loading = served.loading
        served.wanted += 1
        try:
            # Those that go away do not take it from the others.
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            if loading.cancelled():
                raise ending() from None
            raise
        finally:
            served.wanted -= 1

    async def _bring(self, served: _Served) -> None:
        source, began = served.source, time.monotonic()
        try:
            found = await in_own_thread(lambda: self._loader.find(source))
            await self._make_room(served.name, found.memory)
            try:
                model = await in_own_thread(
                    lambda: self._loader.load(source, found), unwanted=lambda late: late.close()
                )
            finally:
                self._reserved -= found.memory
                self._tell_change()
        except AnespecError as error:
            _log.error("%s cannot be loaded: %s", served.name, error)
            told = str(error).replace(str(source.path), served.name)
            raise ModelLoadError(f"the model {served.name} cannot be loaded: {told}") from error
        resident = _Resident(served.name, found, model, used=next(self._uses))
        self._residents.append(resident)
        if self._served.get(served.name) is served and served.source == source:
            served.resident = resident
        else:
            self._retire(resident)
        _log.info("%s was loaded in %s", served.name, duration_text(time.monotonic() - began))

    async def _make_room(self, name: str, needed: int) -> None:
        """Reserve memory; models that nobody uses go for it, what was used longest ago first."""
        limit = self._limit
        if limit is not None and limit.is_firm and needed > limit.bytes:
            raise UsageError(
                f"{name} takes about {bytes_text(needed)} of memory, more than the {bytes_text(limit.bytes)} "
                "of --memory; give it more"
            )
        deadline = time.monotonic() + self._room_seconds
        while limit is not None and not limit.holds(taken := self._taken, needed):
            idle = [each for each in self._residents if self._is_idle(each)]
            if idle:
                longest = min(idle, key=lambda each: each.used)
                _log.info("%s gives way to %s", longest.name, name)
                self._retire(longest)
            change = self._changed
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await change.wait()
            except TimeoutError:
                raise ApiError(
                    503,
                    f"there is no room for {name} while other models are in use (they take "
                    f"{bytes_text(taken)} of {bytes_text(limit.bytes)}); try again later",
                    "no_room",
                    headers={"retry-after": "10"},
                ) from None
        self._reserved += needed

    @property
    def _taken(self) -> int:
        return self._reserved + sum(each.found.memory for each in self._residents)

    def _is_idle(self, resident: _Resident) -> bool:
        served = self._served.get(resident.name)
        return not (resident.leases or resident.is_retired or (served is not None and served.wanted))

    async def _is_sound(self, resident: _Resident) -> bool:
        """Whether its files are those that were loaded; one that was written into is loaded anew."""
        now = time.monotonic()
        if now - resident.looked < SECONDS_BETWEEN_LOOKS:
            return True
        resident.looked = now
        changed = await asyncio.to_thread(lambda: resident.found.files.written_into)
        if changed is None:
            return True
        _log.error(
            "%s: was written into while %s was in memory, which is loaded anew", changed, resident.name
        )
        self._retire(resident)
        return False

    def _retire(self, resident: _Resident) -> None:
        """Nobody gets it any more; it goes once nobody has it."""
        served = self._served.get(resident.name)
        if served is not None and served.resident is resident:
            served.resident = None
        resident.is_retired = True
        if not resident.leases:
            self._send_away(resident)

    def _send_away(self, resident: _Resident) -> None:
        if resident.going is None and not self._closed:
            resident.going = asyncio.create_task(self._close(resident))

    async def _close(self, resident: _Resident) -> None:
        try:
            await in_own_thread(resident.model.close)
        except Exception:
            _log.exception("%s could not be closed", resident.name)
        self._residents.remove(resident)
        _log.info("%s is out of memory", resident.name)
        self._tell_change()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def reload(self) -> None:
        """Look again at what is served: see `Models.reload`. What cannot be read stays as it is, and is said.

        A model whose artifact is another now is loaded anew, beside the old one where there is room; the old
        one goes once nobody uses it.
        """
        were_loaded = set(self.loaded)
        try:
            if self._reread is not None:
                self._take(await in_own_thread(self._reread))
        except AnespecError as error:
            _log.error("what is served stays as it was: %s", error)
        for served in tuple(self._served.values()):
            await self._retire_changed(served)
            if served.name in were_loaded and served.resident is None:
                # Its failure was logged.
                with contextlib.suppress(AnespecError, ApiError):
                    await self._wait_for(served)
        _log.info("reloaded: %s", ", ".join(self._served))

    def _take(self, sources: Names) -> None:
        before, self._served = self._served, {}
        for name, source in sources.items():
            known = before.get(name)
            self._served[name] = (
                known if known is not None and known.source == source else _served(name, source)
            )
        for known in before.values():
            if known.resident is not None and self._served.get(known.name) is not known:
                self._retire(known.resident)
                known.resident = None

    async def _retire_changed(self, served: _Served) -> None:
        """Retire a model where another artifact stands in its place by now."""
        resident = served.resident
        if resident is None:
            return
        try:
            found = await in_own_thread(lambda: self._loader.find(served.source))
        except AnespecError as error:
            _log.error("%s stays as it was: %s", served.name, error)
            return
        if found.fingerprint != resident.found.fingerprint and not resident.is_retired:
            self._retire(resident)

    async def close(self) -> None:
        """Give all of them back; what runs on them is ended."""
        self._closed = True
        for served in self._served.values():
            if served.loading is not None:
                served.loading.cancel()
        going = [each.going for each in self._residents if each.going is not None]
        residents = [each for each in self._residents if each.going is None]
        await asyncio.gather(*(asyncio.to_thread(each.model.stop) for each in residents), *going)
        for each in residents:
            keep(each.model)
            self._residents.remove(each)
            each.is_retired = True
        for served in self._served.values():
            served.resident = None
        self._tell_change()


def _served(name: str, source: ModelSource) -> _Served:
    try:
        created = int(source.path.stat().st_mtime)
    except OSError:
        created = int(time.time())
    return _Served(name, source, created)


def _forget_loading(served: _Served, task: asyncio.Task[None]) -> None:
    served.loading = None
    if not task.cancelled():
        # Where nobody waits any more, its failure was logged.
        task.exception()
