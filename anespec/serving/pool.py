"""Keep a daemon's models in memory: load them at their first request, unload them when others need room."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anespec.models.memory_limit import MemoryLimit
from anespec.runtime.server.http.errors import ApiError, ending, without_paths
from anespec.runtime.server.models import Leased, ModelCard, ServingModel, Wait, as_long_as_it_takes
from anespec.serving.loading import Loader
from anespec.serving.residents import TURN_SECONDS, Resident, Residents, in_own_thread
from anespec.serving.sources import ModelSource, Names
from anespec.system.errors import AnespecError
from anespec.system.formatting import duration_text, named, quoted

ROOM_SECONDS = 30.0
"""Seconds that a request waits for other requests to release the memory that it needs."""

_log = logging.getLogger("anespec.serve")


class ModelLoadError(AnespecError):
    """A model cannot be loaded. The text is for the client; `__cause__` has the full reason."""


@dataclass(eq=False)
class _Served:
    """A model and its name. `wanted` is the number of requests that wait for the model to be loaded."""

    name: str
    source: ModelSource
    created: int
    resident: Resident | None = None
    loading: asyncio.Task[None] | None = None
    wanted: int = 0


class ModelPool:
    """The models of a daemon by name; the first is the default.

    Use it on the event loop only (see runtime.server.models).
    """

    def __init__(
        self,
        sources: Names,
        loader: Loader,
        limit: MemoryLimit | None = None,
        *,
        reread: Callable[[], Names] | None = None,
        room_seconds: float = ROOM_SECONDS,
        turn_seconds: float = TURN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with no model loaded. `reread` is called in a thread at a reload and returns the new
        sources. `clock` returns seconds."""
        self._served = {name: _served(name, source) for name, source in sources.items()}
        self._loader = loader
        self._residents = Residents(limit, room_seconds, turn_seconds, clock)
        self._reread = reread
        self._closed = False

    @property
    def names(self) -> Sequence[str]:
        """Return the served names, the default first."""
        return tuple(self._served)

    @property
    def cards(self) -> Sequence[ModelCard]:
        """Return the cards of all served models."""
        return [
            ModelCard(
                each.name,
                each.created,
                each.resident is not None,
                None if each.resident is None else each.resident.model.context,
                None if each.resident is None else each.resident.model.checking,
            )
            for each in self._served.values()
        ]

    @property
    def loaded(self) -> Mapping[str, ServingModel]:
        """Return the models in memory, by name."""
        return {each.name: each.resident.model for each in self._served.values() if each.resident is not None}

    @property
    def folders(self) -> Sequence[Path]:
        """Return the folders of the models in memory."""
        return [each.resident.found.path for each in self._served.values() if each.resident is not None]

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None, wait: Wait = as_long_as_it_takes) -> AsyncIterator[Leased]:
        """Hold a model in memory while the block lasts; see `Models.lease`.

        Raises on entering:
            ApiError: there is no such model (404), there is no room for it (503), or the daemon ends (503).
            ModelLoadError: the model cannot be loaded.
        """
        resident = await self._hold(name, wait)
        try:
            yield Leased(resident.name, resident.model)
        finally:
            self._residents.let_go(resident)

    async def _hold(self, name: str | None, wait: Wait) -> Resident:
        while True:
            served = self._named(name)
            resident = served.resident
            if resident is None:
                await self._wait_for(served, wait)
            elif not await resident.is_sound():
                self._retire(resident)
            elif not resident.is_retired:
                self._residents.hold(resident)
                return resident

    def _named(self, name: str | None) -> _Served:
        if self._closed:
            raise ending()
        found = self._served.get(name or next(iter(self._served)))
        if found is None:
            raise ApiError(
                404,
                f"there is no model {quoted(name or '')}; {_served_here(self.names)}",
                "model_not_found",
                "model",
            )
        return found

    async def _wait_for(self, served: _Served, wait: Wait = as_long_as_it_takes) -> None:
        """Load the model; concurrent requests for the same model wait for the same load."""
        if served.loading is None:
            served.loading = asyncio.create_task(self._bring(served))
            served.loading.add_done_callback(lambda task: _forget_loading(served, task))
        loading = served.loading

        async def loaded() -> None:
            # A client that disconnects does not cancel the load for the others.
            await asyncio.shield(loading)

        served.wanted += 1
        try:
            await wait(loaded)
        except asyncio.CancelledError:
            if loading.cancelled():
                raise ending() from None
            raise
        finally:
            served.wanted -= 1

    async def _bring(self, served: _Served) -> None:
        source, began = served.source, time.monotonic()
        _log.info("%s is being loaded", served.name)
        try:
            found = await in_own_thread(lambda: self._loader.find(source))
            await self._residents.reserve(served.name, found.memory, self._give_way)
            try:
                model = await in_own_thread(
                    lambda: self._loader.load(source, found), unwanted=lambda late: late.close()
                )
            except BaseException:
                self._residents.give_up(found.memory)
                raise
        except AnespecError as error:
            reason = str(error).replace(str(source.path), served.name)
            public = without_paths(reason, "the server's log says why")
            raise ModelLoadError(f"the model {served.name} cannot be loaded: {public}") from error
        resident = self._residents.add(served.name, found, model)
        if self._served.get(served.name) is served:
            served.resident = resident
        else:
            self._residents.retire(resident)
        _log.info("%s was loaded in %s", served.name, duration_text(time.monotonic() - began))

    def _give_way(self, resident: Resident) -> bool:
        """Retire an unused model, unless a request is about to use it."""
        served = self._served.get(resident.name)
        if served is not None and served.resident is resident and served.wanted:
            return False
        self._retire(resident)
        return True

    def _retire(self, resident: Resident) -> None:
        """Retire a model: it is not handed out any more, and is closed after its last use."""
        served = self._served.get(resident.name)
        if served is not None and served.resident is resident:
            served.resident = None
        self._residents.retire(resident)

    async def reload(self) -> None:
        """Read the served models again: see `Models.reload`.

        Models that cannot be read stay unchanged, and the log says so. If a model's artifact was replaced,
        the new one is loaded, beside the old one if there is room. The old one is closed after its last use.
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
                try:
                    await self._wait_for(served)
                except (AnespecError, ApiError) as error:
                    _log.error("%s", error)
        _log.info("reloaded: %s", ", ".join(self._served))

    def _take(self, sources: Names) -> None:
        before, self._served = self._served, {}
        for name, source in sources.items():
            known = before.get(name)
            is_same = known is not None and known.source == source
            self._served[name] = known if known is not None and is_same else _served(name, source)
        for known in before.values():
            if known.resident is not None and self._served.get(known.name) is not known:
                self._residents.retire(known.resident)

    async def _retire_changed(self, served: _Served) -> None:
        """Retire a model whose artifact was replaced on disk."""
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

    def stop_loading(self) -> None:
        """Stop waiting for loads (see `Models.stop_loading`); downloads and conversions run until the process
        ends."""
        for served in self._served.values():
            if served.loading is not None:
                served.loading.cancel()

    async def close(self) -> None:
        """Close all models; their requests are ended."""
        self._closed = True
        self.stop_loading()
        for served in self._served.values():
            served.resident = None
        await self._residents.close()


def _served(name: str, source: ModelSource) -> _Served:
    try:
        created = int(source.path.stat().st_mtime)
    except OSError:
        created = int(time.time())
    return _Served(name, source, created)


def _forget_loading(served: _Served, task: asyncio.Task[None]) -> None:
    served.loading = None
    error = None if task.cancelled() else task.exception()
    if error is not None and not served.wanted:
        # The requests that waited would report the error, but all of them are gone.
        _log.error("%s cannot be loaded: %s", served.name, error.__cause__ or error)


def _served_here(names: Sequence[str]) -> str:
    return f"this server has {named(names)}"
