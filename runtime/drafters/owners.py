"""What a source has learnt, apart by owner, in bounded memory."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Learnt = TypeVar("Learnt")


class PerOwner(Generic[Learnt]):
    """One `Learnt` for each of the owners that asked last; nothing of it ever goes to another.

    That of the owner who asked longest ago is dropped where there are too many; sessions that hold it keep
    it until they end. Sessions may be opened on several threads.
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
        """What was learnt of an owner."""
        with self._guard:
            learnt = self._learnt[owner] if owner in self._learnt else self._fresh()
            self._learnt[owner] = learnt
            self._learnt.move_to_end(owner)
            while len(self._learnt) > self._most:
                self._learnt.popitem(last=False)
            return learnt

    @property
    def all(self) -> tuple[Learnt, ...]:
        """What was learnt of every owner, that of the one who asked longest ago first."""
        return tuple(self._learnt.values())

    def clear(self) -> None:
        """Forget all."""
        self._learnt.clear()
