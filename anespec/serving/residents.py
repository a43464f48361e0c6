"""Track the models in memory, their sizes and uses, and unload models when others need the memory."""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from anespec.models.memory_limit import MemoryLimit
from anespec.runtime.server.http.errors import ApiError
from anespec.serving.loading import Found, ResidentModel
from anespec.system.errors import UsageError
from anespec.system.formatting import bytes_text
from anespec.system.process_exit import keep

# Run long work outside the event loop, in a thread that does not delay the exit of the process.

T = TypeVar("T")


async def in_own_thread(work: Callable[[], T], unwanted: Callable[[T], None] = lambda result: None) -> T:
    """Run `work` in its own thread; return its result, or raise its exception.

    An event loop waits at its end for the threads of its pool, and a conversion takes minutes. If the caller
    is cancelled, the work continues, and `unwanted` is called in that thread with the result.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            if error is None:
                threading.Thread(target=unwanted, args=(result,), daemon=True).start()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(finish, result, failure)
        except RuntimeError:
            # The event loop has ended.
            if failure is None:
                unwanted(result)  # type: ignore[arg-type]

    threading.Thread(target=run, name="anespec loading", daemon=True).start()
    return await done


SECONDS_BETWEEN_LOOKS = 1.0
"""Seconds between two checks of the files of a model in use."""

TURN_SECONDS = 5.0
"""Seconds after which a loaded model may be unloaded even if it is in use. Its answers are completed, and
later requests wait until it is loaded again. Otherwise requests that overlap would keep all other models
out."""

_log = logging.getLogger("anespec.serve")


@dataclass(eq=False)
class Resident:
    """A model in memory since the time `loaded`.

    A retired model is closed after its last use. `used` orders the last uses of all models.
    """

    name: str
    found: Found
    model: ResidentModel
    leases: int = 0
    used: int = 0
    is_retired: bool = False
    going: asyncio.Task[None] | None = None
    clock: Callable[[], float] = time.monotonic
    loaded: float = field(init=False)
    looked: float = field(init=False)

    def __post_init__(self) -> None:
        self.loaded = self.looked = self.clock()

    async def is_sound(self) -> bool:
        """Return whether the model's files are unchanged since it was loaded, checked at most once a
        second."""
        now = self.clock()
        if now - self.looked < SECONDS_BETWEEN_LOOKS:
            return True
        self.looked = now
        changed = await asyncio.to_thread(lambda: self.found.files.written_into)
        if changed is not None:
            _log.error(
                "%s: was written to while %s was in memory; the model is loaded again", changed, self.name
            )
        return changed is None


class Residents:
    """All models in memory. Use it on the event loop only."""

    def __init__(
        self,
        limit: MemoryLimit | None,
        room_seconds: float,
        turn_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with no model. A `limit` of None allows any size.

        A load waits at most `room_seconds` for memory. `turn_seconds` replaces TURN_SECONDS. `clock` returns
        seconds.
        """
        self._limit = limit
        self._room_seconds = room_seconds
        self._turn_seconds = turn_seconds
        self._clock = clock
        self._all: list[Resident] = []
        self._reserved = 0
        self._uses = itertools.count(1)
        self._changed = asyncio.Event()
        self._closed = False

    def hold(self, resident: Resident) -> None:
        """Count one more use of a model."""
        resident.leases += 1

    def let_go(self, resident: Resident) -> None:
        """Count one use less."""
        resident.leases -= 1
        resident.used = next(self._uses)
        if resident.is_retired and not resident.leases:
            self._start_closing(resident)
        self._notify()

    def retire(self, resident: Resident) -> None:
        """Give the model to no further request, and close it after its last use."""
        resident.is_retired = True
        if not resident.leases:
            self._start_closing(resident)

    async def reserve(self, name: str, needed: int, give_way: Callable[[Resident], bool]) -> None:
        """Reserve `needed` bytes for a model, and unload others if necessary.

        Idle models are unloaded first, the least recently used one before the others. If all are in use, one
        that was loaded longer than `turn_seconds` ago is retired.

        `give_way` retires a model and returns True, unless a request waits for that model. `add` or `give_up`
        ends the reservation.

        Raises:
            UsageError: the model is larger than the limit.
            ApiError: other models stayed in use for too long (503).
        """
        limit = self._limit
        if limit is not None and limit.is_firm and needed > limit.bytes:
            raise UsageError(
                f"{name} takes about {bytes_text(needed)} of memory, more than the {bytes_text(limit.bytes)} "
                "of --memory; raise --memory"
            )
        deadline = self._clock() + self._room_seconds
        while limit is not None and not limit.holds(self._taken, needed):
            for each in self._candidates():
                if give_way(each):
                    _log.info("%s gives way to %s", each.name, name)
                    break
            taken, change = self._taken, self._changed
            until = min([deadline, *(end for each in self._all if (end := self._end_of_turn(each)))])
            try:
                async with asyncio.timeout(until - self._clock()):
                    await change.wait()
            except TimeoutError:
                if self._clock() < deadline:
                    continue
                raise ApiError(
                    503,
                    f"there is no room for {name} while other models are in use (they take "
                    f"{bytes_text(taken)} of {bytes_text(limit.bytes)}); try again later",
                    "no_room",
                    headers={"retry-after": "10"},
                ) from None
        self._reserved += needed

    def add(self, name: str, found: Found, model: ResidentModel) -> Resident:
        """Register the model that the reservation was for."""
        resident = Resident(name, found, model, used=next(self._uses), clock=self._clock)
        self._all.append(resident)
        self.give_up(found.memory)
        return resident

    def give_up(self, reserved: int) -> None:
        """End a reservation of that many bytes."""
        self._reserved -= reserved
        self._notify()

    async def close(self) -> None:
        """Stop all models, even those in use; they stay in memory until the process ends (see
        process_exit)."""
        self._closed = True
        going = [each.going for each in self._all if each.going is not None]
        staying = [each for each in self._all if each.going is None]
        await asyncio.gather(*(asyncio.to_thread(each.model.stop) for each in staying), *going)
        for each in staying:
            keep(each.model)
        self._all.clear()
        self._notify()

    def _candidates(self) -> list[Resident]:
        """Return the models that may give way now, the next one first."""
        idle = [each for each in self._all if not (each.leases or each.is_retired)]
        if idle or any(each.is_retired for each in self._all):
            return sorted(idle, key=lambda each: each.used)
        had = [each for each in self._all if self._end_of_turn(each) is None]
        return sorted(had, key=lambda each: each.loaded)

    def _end_of_turn(self, resident: Resident) -> float | None:
        """Return the time from which a model in use may be unloaded; None if that time has passed."""
        end = resident.loaded + self._turn_seconds
        return end if end > self._clock() else None

    @property
    def _taken(self) -> int:
        return self._reserved + sum(each.found.memory for each in self._all)

    def _start_closing(self, resident: Resident) -> None:
        if resident.going is None and not self._closed:
            resident.going = asyncio.create_task(self._close(resident))

    async def _close(self, resident: Resident) -> None:
        try:
            await in_own_thread(resident.model.close)
        except Exception:
            _log.exception("%s could not be closed", resident.name)
        self._all.remove(resident)
        _log.info("%s was unloaded", resident.name)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
