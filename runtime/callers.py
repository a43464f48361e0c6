"""The client of a request."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """The client of a request, and its time limit.

    Data of an `owner`'s requests is never used for another owner; requests of higher `priority` come first.
    `seconds` is the limit from the request to its end, None for no limit. `name` is the owner's name in logs.
    An administrator sees the figures of all owners together, others only their own.
    """

    owner: str = ""
    priority: int = 0
    seconds: float | None = None
    name: str = ""
    is_admin: bool = False
