"""Who asks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """Who asks for something, and for how long they wait.

    What is known of an `owner`'s requests serves no other owner; those of higher `priority` come first.
    `seconds` is how long one may take, from asking to its end; None: as long as it takes. `name` is what logs
    call the owner. An administrator is told what all owners do together, anybody else their own part.
    """

    owner: str = ""
    priority: int = 0
    seconds: float | None = None
    name: str = ""
    is_admin: bool = False
