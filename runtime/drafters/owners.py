"""The memory of a source, separate for each owner and bounded."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Learnt = TypeVar("Learnt")


class PerOwner(Generic[Learnt]):
    """One `Learnt` for each of the most recent owners, never shared between owners.

    If there are too many, the least recently used is dropped; sessions that hold it keep it until they end.
    Sessions may be opened on several threads.
    """

    def __init__(self, fresh: Callable[[], Learnt], most: int) -> None:
        """`fresh` makes what a new owner begins with."""
        self._fresh = fresh
        self._most = most
        self._learnt: OrderedDict[str, Learnt] = OrderedDict()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._learnt)

    def of(self, owner: str) -> Learnt:
        """Return the memory of an owner."""
        with self._guard:
            learnt = self._learnt[owner] if owner in self._learnt else self._fresh()
            self._learnt[owner] = learnt
            self._learnt.move_to_end(owner)
            while len(self._learnt) > self._most:
                self._learnt.popitem(last=False)
            return learnt

    @property
    def all(self) -> tuple[Learnt, ...]:
        """The memories of all owners, the least recently used first."""
        return tuple(self._learnt.values())

    def clear(self) -> None:
        """Forget all."""
        self._learnt.clear()
