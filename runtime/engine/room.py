"""The limit on waiting requests, and the estimate of when there will be room."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from anespec.system.errors import RequestError

_WEIGHT = 0.125
"""Of the last request that ended in how long requests are taken to run."""

SOONEST = 1.0
"""Seconds: the estimate before any request has ended, and the minimum."""


class QueueFullError(RequestError):
    """More requests of a tenant would wait than may; in `retry_after` seconds there may be room."""

    def __init__(self, most_waiting: int, retry_after: float) -> None:
        super().__init__(f"more than {most_waiting} requests would wait; try again later")
        self.retry_after = retry_after


class QueueLimit:
    """Count the requests that were accepted and have not ended.

    The caller must lock. The first `capacity` of them run, or start at once. A limited number of each
    tenant's requests may wait in addition: a tenant who exceeds it is refused, and no other tenant is.
    """

    def __init__(self, capacity: int, most_waiting: int | None, running: Callable[[str], int]) -> None:
        """`most_waiting`: of one tenant; None is no limit. `running` says how many of a tenant's run now."""
        self._capacity = capacity
        self._most_waiting = most_waiting
        self._running = running
        self._taken = 0
        self._by_owner: Counter[str] = Counter()
        self._run_seconds = 0.0

    def widen(self, capacity: int) -> None:
        """Let so many requests run from now on."""
        self._capacity = capacity

    @property
    def waiting(self) -> int:
        """The number of requests that wait for others to end."""
        return max(0, self._taken - self._capacity)

    def waiting_of(self, tenant: str) -> int:
        """Return the number of a tenant's requests that wait for others to end."""
        return max(0, min(self._by_owner[tenant] - self._running(tenant), self.waiting))

    def require(self, tenants: Mapping[str, int]) -> None:
        """Raise QueueFullError where so many requests of these tenants cannot be taken now, all together."""
        if self._most_waiting is None:
            return
        beyond = self._taken + sum(tenants.values()) - self._capacity
        for tenant, count in tenants.items():
            idle = self._by_owner[tenant] + count - self._running(tenant)
            too_many = min(idle, beyond) - self._most_waiting
            if too_many > 0:
                # Each region is free again after as long as requests lately ran.
                seconds = too_many * self._run_seconds / self._capacity
                raise QueueFullError(self._most_waiting, max(SOONEST, seconds))

    def require_possible(self, count: int) -> None:
        """Raise RequestError if so many requests can never be accepted together, regardless of other
        tenants."""
        most = math.inf if self._most_waiting is None else self._capacity + self._most_waiting
        if count > most:
            raise RequestError(
                f"{count} answers are asked for at once, but only {most} can run or wait; "
                "ask for fewer at a time"
            )

    def take(self, tenants: Mapping[str, int]) -> None:
        """Take so many requests of these tenants, or none of them.

        Raises:
            RequestError: so many can never be taken.
            QueueFullError: not now.
        """
        count = sum(tenants.values())
        self.require_possible(count)
        self.require(tenants)
        self._taken += count
        self._by_owner.update(tenants)

    def leave(self, tenant: str, seconds: float) -> None:
        """Note that a request ended that ran for so long; 0 for one that never ran."""
        self._taken -= 1
        self._by_owner[tenant] -= 1
        if not self._by_owner[tenant]:
            del self._by_owner[tenant]
        if seconds > 0.0:
            known = self._run_seconds or seconds
            self._run_seconds = known + _WEIGHT * (seconds - known)
