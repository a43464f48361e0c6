"""Limit the number of waiting requests, and estimate when another one can be taken."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from anespec.system.errors import RequestError

_WEIGHT = 0.125
"""The weight of the last ended request in the moving average of the requests' run times."""

MIN_RETRY_SECONDS = 1.0
"""The smallest estimate, which is also the estimate before any request has ended."""


class QueueFullError(RequestError):
    """More requests of a tenant would wait than the limit; try again in `retry_after` seconds."""

    def __init__(self, most_waiting: int, retry_after: float) -> None:
        super().__init__(f"more than {most_waiting} requests would wait; try again later")
        self.retry_after = retry_after


class QueueLimit:
    """The count of the requests that were accepted and have not ended, with a limit.

    The caller must hold a lock. The first `capacity` requests run, or start at once. In addition a limited
    number of each tenant's requests may wait; beyond it, requests of this tenant alone are refused.
    """

    def __init__(self, capacity: int, most_waiting: int | None, running: Callable[[str], int]) -> None:
        """Allow `most_waiting` waiting requests of each tenant; None is no limit.

        `running` returns the number of a tenant's running requests.
        """
        self._capacity = capacity
        self._most_waiting = most_waiting
        self._running = running
        self._taken = 0
        self._by_tenant: Counter[str] = Counter()
        self._run_seconds = 0.0

    def widen(self, capacity: int) -> None:
        """Set the number of requests that run at a time."""
        self._capacity = capacity

    @property
    def waiting(self) -> int:
        """The number of requests that wait for others to end."""
        return max(0, self._taken - self._capacity)

    def waiting_of(self, tenant: str) -> int:
        """Return the number of a tenant's requests that wait for others to end."""
        return max(0, min(self._by_tenant[tenant] - self._running(tenant), self.waiting))

    def require(self, tenants: Mapping[str, int]) -> None:
        """Check that these requests, counted by tenant, can all be taken now.

        Raises:
            QueueFullError: they cannot.
        """
        if self._most_waiting is None:
            return
        beyond = self._taken + sum(tenants.values()) - self._capacity
        for tenant, count in tenants.items():
            idle = self._by_tenant[tenant] + count - self._running(tenant)
            too_many = min(idle, beyond) - self._most_waiting
            if too_many > 0:
                # Each region becomes free after the average time of recent requests.
                seconds = too_many * self._run_seconds / self._capacity
                raise QueueFullError(self._most_waiting, max(MIN_RETRY_SECONDS, seconds))

    def require_possible(self, count: int) -> None:
        """Check that `count` requests can be accepted together if no others run or wait.

        Raises:
            RequestError: they cannot.
        """
        most = math.inf if self._most_waiting is None else self._capacity + self._most_waiting
        if count > most:
            raise RequestError(
                f"{count} answers are asked for at once, but only {most} can run or wait; "
                "ask for fewer at a time"
            )

    def take(self, tenants: Mapping[str, int]) -> None:
        """Count these requests, given by tenant, as accepted: all of them or none.

        Raises:
            RequestError: there are more than can ever be accepted together.
            QueueFullError: they cannot be accepted now.
        """
        count = sum(tenants.values())
        self.require_possible(count)
        self.require(tenants)
        self._taken += count
        self._by_tenant.update(tenants)

    def leave(self, tenant: str, seconds: float) -> None:
        """Count a request as ended; it ran for `seconds`, 0 if it never ran."""
        self._taken -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
        if seconds > 0.0:
            known = self._run_seconds or seconds
            self._run_seconds = known + _WEIGHT * (seconds - known)
