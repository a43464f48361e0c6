"""Assign waiting requests to regions, and order the running sequences."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from anespec.runtime.engine.requests import Event, FinishReason
from anespec.runtime.engine.sequences import ActiveSequence, WaitingRequest
from anespec.runtime.engine.statistics import RequestCounts
from anespec.runtime.engine.waiting_queue import WaitingQueue
from anespec.runtime.kv.prefixes import common_prefix
from anespec.runtime.kv.region_store import RegionStore
from anespec.runtime.passes import VerifierShape

# If there is a single region, it goes to the tenant that has used it least lately.

HALF_LIFE = 10.0
"""Seconds after which used time counts half. So time that was used while no other tenant waited is soon
forgotten."""

MIN_OWNER_SECONDS = 1e-3
"""Tenants with fewer seconds than this are dropped."""


class TenantSeconds:
    """The seconds for which each tenant's sequences have used regions, with exponential decay.

    Use it from one thread at a time.
    """

    def __init__(self, clock: Callable[[], float], half_life: float = HALF_LIFE) -> None:
        """Begin without tenants; `clock` returns seconds, `half_life` is in seconds."""
        self._clock = clock
        self._half_life = half_life
        self._taken: dict[str, tuple[float, float]] = {}
        """By tenant: the seconds at the last change, and the time of that change."""

    def __len__(self) -> int:
        """Return the number of tenants with seconds."""
        return len(self._taken)

    def take(self, tenant: str, seconds: float) -> None:
        """Add the seconds for which a tenant's sequence used a region, until now."""
        self._taken[tenant] = self.of(tenant) + seconds, self._clock()
        for other in [other for other in self._taken if self.of(other) < MIN_OWNER_SECONDS]:
            del self._taken[other]

    def of(self, tenant: str) -> float:
        """Return a tenant's seconds after decay."""
        seconds, when = self._taken.get(tenant, (0.0, 0.0))
        return seconds * 0.5 ** ((self._clock() - when) / self._half_life) if seconds else 0.0


HOLD_SECONDS = 0.1
"""Seconds for which the only region is kept for the tenant whose answer has just ended. A client that asks
for one short answer after another asks again within this time. Otherwise it would wait for another tenant's
long answer each time."""


@dataclass(frozen=True)
class _Ended:
    """The tenant and priority of the sequence that ended last, and the time of its end."""

    tenant: str
    priority: int
    when: float


class Scheduler:
    """The queue of waiting requests, and the active sequences in order of their turn."""

    def __init__(
        self, shape: VerifierShape, store: RegionStore, shares_prefixes: bool, clock: Callable[[], float]
    ) -> None:
        """Begin idle. With `shares_prefixes` prompts may reuse each other's K/V. `clock` returns seconds."""
        self._shape = shape
        self._store = store
        self.shares_prefixes = shares_prefixes
        self._clock = clock
        self._seconds = TenantSeconds(clock)
        self._queue = WaitingQueue(self._seconds_of)
        self._active: dict[int, ActiveSequence] = {}
        self._admitted: dict[int, float] = {}
        self._last_ended: _Ended | None = None
        self._next_deadline = math.inf
        """No deadline is earlier. It may be the deadline of a request that has ended."""

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._queue)

    @property
    def count(self) -> int:
        """The number of sequences with a region; any thread may read it."""
        return len(self._active)

    @property
    def active(self) -> Sequence[ActiveSequence]:
        """The sequences that have a region; those that have waited longest for rows come first."""
        return tuple(self._active.values())

    @property
    def in_turn(self) -> Sequence[ActiveSequence]:
        """The active sequences in the order in which they get rows: one of each tenant, then a second one.

        So tenants get equally many rows if a pass has fewer rows than there are sequences.
        """
        places: dict[str, int] = {}
        order = []
        for sequence in self._active.values():
            tenant = sequence.request.tenant
            places[tenant] = places.get(tenant, 0) + 1
            order.append((places[tenant], sequence))
        if len(places) > 1:
            order.sort(key=itemgetter(0))
        return tuple(sequence for _, sequence in order)

    def running(self, tenant: str) -> int:
        """Return the number of a tenant's active sequences; any thread may call this."""
        return self._queue.running(tenant)

    @property
    def hold_seconds(self) -> float:
        """The seconds for which the next waiting request should not begin; 0 if it may begin at once.

        It is held back if one sequence runs at a time, and the tenant whose sequence has just ended has used
        the region for less time than the next request's tenant: that tenant may send another request soon,
        which then goes first.
        """
        last = self._last_ended
        waiting = next(self._queue.in_turn(), None) if last is not None and not self._active else None
        if last is None or waiting is None or self._store.capacity > 1:
            return 0.0
        request = waiting.request
        if request.priority > last.priority or self._seconds.of(request.tenant) <= self._seconds.of(
            last.tenant
        ):
            return 0.0
        return max(0.0, last.when + HOLD_SECONDS - self._clock())

    @property
    def first_of_burst(self) -> WaitingRequest | None:
        """The oldest request, if none has begun and there are regions for more; else None."""
        if self._active or not len(self._queue) < self._store.capacity:
            return None
        return min(self._queue, key=lambda waiting: waiting.since, default=None)

    def enqueue(self, waiting: WaitingRequest) -> None:
        """Add a request to the queue."""
        self._queue.add(waiting)
        self._next_deadline = min(self._next_deadline, waiting.deadline)

    def find(self, number: int) -> ActiveSequence | None:
        """Return the active sequence of this number; None if there is none."""
        return self._active.get(number)

    def withdraw(self, number: int) -> WaitingRequest | None:
        """Take a request out of the queue and return it; None if it does not wait."""
        return self._queue.remove(number)

    def begin_output(self, sequence: ActiveSequence) -> None:
        """Limit the time of a sequence that has got its first token."""
        if (seconds := sequence.request.output_seconds) is not None:
            sequence.deadline = min(sequence.deadline, self._clock() + seconds)
            self._next_deadline = min(self._next_deadline, sequence.deadline)

    def overdue(self) -> list[int]:
        """Return the numbers of the waiting and active sequences whose deadline has passed."""
        now = self._clock()
        if now < self._next_deadline:
            return []
        everyone: list[ActiveSequence | WaitingRequest] = [*self._active.values(), *self._queue]
        deadlines = [(each.deadline, each.number) for each in everyone]
        self._next_deadline = min((deadline for deadline, _ in deadlines if deadline > now), default=math.inf)
        return [number for deadline, number in deadlines if deadline <= now]

    def admit(self) -> Iterator[ActiveSequence | Event]:
        """Move requests from the queue to idle regions; yield the new sequences.

        A request whose prompt fills the context ends at once: its last event is yielded instead. A sequence
        that goes on after a pause is not yielded. A request that shares a long prefix with a prompt in
        prefill waits for that prefill, and a region stays free for it.
        """
        self._make_room()
        for waiting in self._next(self._store.idle):
            if len(waiting.tokens) == self._shape.context:
                self._queue.remove(waiting.number)
                yield waiting.end(self._clock(), FinishReason.CONTEXT)
            elif not self._gains_by_waiting(waiting):
                sequence = self._activate(waiting)
                self._queue.begin(waiting)
                self._active[sequence.number] = sequence
                self._admitted[sequence.number] = self._clock()
                if waiting.paused is None:
                    yield sequence

    def took_turn(self, sequence: ActiveSequence) -> None:
        """Move a sequence that had rows in a pass behind the others."""
        self._active[sequence.number] = self._active.pop(sequence.number)

    def retire(self, sequence: ActiveSequence) -> None:
        """End a sequence and free its region; its K/V stay there until the region is needed."""
        self._vacate(sequence)
        request = sequence.request
        self._queue.end(request.tenant)
        self._last_ended = _Ended(request.tenant, request.priority, self._clock())

    def _vacate(self, sequence: ActiveSequence) -> None:
        """Take a sequence's region away, and charge its tenant with the time for which it had the region."""
        del self._active[sequence.number]
        self._store.release(sequence.region)
        self._seconds.take(sequence.request.tenant, self._clock() - self._admitted.pop(sequence.number))

    def _seconds_of(self, tenant: str) -> float:
        """Return a tenant's key for the queue: its seconds if there is one region. Several regions are shared
        by turns instead, so the key is 0."""
        return self._seconds.of(tenant) if self._store.capacity == 1 else 0.0

    def _next(self, regions: int) -> list[WaitingRequest]:
        """Return the requests whose turn it is if `regions` regions are free."""
        found: list[WaitingRequest] = []
        for waiting in self._queue.in_turn() if regions else ():
            found.append(waiting)
            regions -= len(waiting.tokens) < self._shape.context
            if not regions:
                break
        return found

    def _make_room(self) -> None:
        """Pause a sequence if no region is free for a tenant without a running sequence.

        Otherwise a tenant with long answers would hold all regions until they end. The paused sequence is the
        shortest one of the tenant with the most running sequences, at least two. If its K/V are overwritten
        meanwhile, it is prefilled again, and its text stays the same.
        """
        if self._store.idle or not self.shares_prefixes:
            return
        waiting = next(self._queue.in_turn(), None)
        if waiting is None:
            return
        request = waiting.request
        tenant = max((each.request.tenant for each in self._active.values()), key=self._queue.running)
        own = [each for each in self._active.values() if each.request.tenant == tenant]
        if self._queue.running(request.tenant) or len(own) < 2:
            return
        shortest = min(own, key=lambda sequence: len(sequence.tokens))
        if shortest.request.priority <= request.priority:
            self._vacate(shortest)
            self._queue.pause(shortest.pause())

    def _gains_by_waiting(self, waiting: WaitingRequest) -> bool:
        """Return whether a prefill of the same tenant will soon leave a longer prefix than exists now.

        That prefill runs the shared rows in any case, and two prefills at once would take as long as one
        after the other. So waiting costs nothing, unless the shared rows are at most one block and might fit
        into its free lanes.
        """
        if not self.shares_prefixes:
            return False
        prompt, tenant = waiting.tokens, waiting.request.tenant
        awaited = 0
        for sequence in self._active.values():
            if sequence.in_prefill and sequence.request.tenant == tenant:
                shared = min(common_prefix(sequence.tokens, prompt), len(prompt) - 1)
                awaited = max(awaited, shared if sequence.computed < shared else 0)
        return (
            awaited > self._shape.block and awaited - self._store.reusable(prompt, tenant) > self._shape.block
        )

    def _activate(self, waiting: WaitingRequest) -> ActiveSequence:
        request, prompt = waiting.request, waiting.prompt
        admission = self._store.allocate_prefix(waiting.tokens, request.tenant)
        if waiting.paused is not None:
            waiting.paused.region = admission.region
            waiting.paused.reset(admission.reused)
            return waiting.paused
        length = len(prompt) + len(request.given)
        room = self._shape.context - length
        wanted = room + 1 if request.max_tokens is None else request.max_tokens
        now = self._clock()
        return ActiveSequence(
            number=waiting.number,
            request=request,
            sampler=waiting.sampler,
            stats=RequestCounts(
                prompt_tokens=length,
                reused_tokens=admission.reused,
                copied_slots=admission.copied_slots,
                queue_seconds=now - waiting.since,
            ),
            region=admission.region,
            limit=length + min(room, wanted),
            finish_at_limit=FinishReason.LENGTH if wanted <= room else FinishReason.CONTEXT,
            tokens=list(prompt),
            computed=admission.reused,
            prefill_end=len(prompt),
            since=now,
            deadline=waiting.deadline,
        )
