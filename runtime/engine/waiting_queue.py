"""Order waiting requests by priority, then by tenants in turn, then by arrival.

Among the tenants of one priority, the tenant with the fewest running sequences comes next; among equals the
one whose last turn is longest ago. So a tenant with a thousand requests does not delay a tenant with one
request: tenants share the regions, not requests. If one sequence runs at a time, the tenant that has used the
region for the least time comes first, before turns count.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anespec.runtime.engine.sequences import WaitingRequest


@dataclass
class _Tenant:
    """A tenant with requests that wait or run. `turn` is the number of its last turn."""

    turn: int
    running: int = 0
    waiting: int = 0


_Line = OrderedDict[int, WaitingRequest]
"""The requests of one tenant and priority, by number and in order of arrival."""


class WaitingQueue:
    """The waiting requests, and the number of running ones for each tenant."""

    def __init__(self, seconds: Callable[[str], float] = lambda tenant: 0.0) -> None:
        """Begin empty; `seconds` returns the time that a tenant has used; less time comes first."""
        self._seconds = seconds
        self._lines: dict[int, dict[str, _Line]] = {}
        self._waiting: dict[int, WaitingRequest] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[WaitingRequest]:
        """Iterate over the waiting requests in order of arrival."""
        return iter(self._waiting.values())

    def running(self, tenant: str) -> int:
        """Return the number of a tenant's running requests; any thread may call this."""
        found = self._tenants.get(tenant)
        return found.running if found is not None else 0

    def add(self, waiting: WaitingRequest) -> None:
        """Add a request behind the others of its priority and tenant.

        A tenant without waiting or running requests goes before the tenant that had the last turn, and behind
        all others. So a tenant that sends one request after another cannot starve the others.
        """
        request = waiting.request
        tenant = self._tenants.setdefault(request.tenant, _Tenant(self._turn - 1))
        tenant.waiting += 1
        lines = self._lines.setdefault(request.priority, {})
        lines.setdefault(request.tenant, OrderedDict())[waiting.number] = waiting
        self._waiting[waiting.number] = waiting

    def remove(self, number: int) -> WaitingRequest | None:
        """Take a request out and return it; None if it does not wait."""
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return None
        request = waiting.request
        lines = self._lines[request.priority]
        del lines[request.tenant][number]
        if not lines[request.tenant]:
            del lines[request.tenant]
        if not lines:
            del self._lines[request.priority]
        self._tenants[request.tenant].waiting -= 1
        self._forget(request.tenant)
        return waiting

    def begin(self, waiting: WaitingRequest) -> None:
        """Take out a request that runs from now on, and count this as its tenant's turn."""
        tenant = self._tenants[waiting.request.tenant]
        # Steps of two leave a place before the last turn for a new tenant.
        self._turn += 2
        tenant.turn = self._turn
        tenant.running += 1
        self.remove(waiting.number)

    def pause(self, waiting: WaitingRequest) -> None:
        """Put a request that was running back into the queue, ahead of all others of its tenant."""
        self.add(waiting)
        self._lines[waiting.request.priority][waiting.request.tenant].move_to_end(waiting.number, last=False)
        self.end(waiting.request.tenant)

    def end(self, tenant: str) -> None:
        """Note that a request of a tenant does not run any more."""
        self._tenants[tenant].running -= 1
        self._forget(tenant)

    def in_turn(self) -> Iterator[WaitingRequest]:
        """Iterate over the waiting requests in the order in which they would begin.

        The queue must not change during the iteration.
        """
        turn = self._turn
        running = {name: tenant.running for name, tenant in self._tenants.items()}
        turns = {name: tenant.turn for name, tenant in self._tenants.items()}
        seconds = {name: self._seconds(name) for name in self._tenants}
        for priority in sorted(self._lines, reverse=True):
            lines = {tenant: iter(line.values()) for tenant, line in self._lines[priority].items()}
            heap = [(running[tenant], seconds[tenant], turns[tenant], tenant) for tenant in lines]
            heapq.heapify(heap)
            while heap:
                tenant = heapq.heappop(heap)[-1]
                waiting = next(lines[tenant], None)
                if waiting is None:
                    continue
                yield waiting
                turn += 2
                turns[tenant] = turn
                running[tenant] += 1
                heapq.heappush(heap, (running[tenant], seconds[tenant], turn, tenant))

    def _forget(self, name: str) -> None:
        tenant = self._tenants[name]
        if not (tenant.waiting or tenant.running):
            del self._tenants[name]
