"""The queue: by priority, then owners in turn, then by arrival.

Of the owners of one priority that one comes next which has the fewest sequences running, and of those the one
whose last turn is longest ago. So an owner with a thousand requests does not hold up one with a single one:
regions are shared by owners, not by requests. Where one sequence runs at a time, what counts before the turns
is how long each owner has had the region.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anespec.runtime.engine.sequences import WaitingRequest


@dataclass
class _Owner:
    """An owner with requests that wait or run. `turn` is when one of them was last begun."""

    turn: int
    running: int = 0
    waiting: int = 0


_Line = OrderedDict[int, WaitingRequest]
"""The requests of one owner and priority, by number and in order of arrival."""


class WaitingQueue:
    """The waiting requests, and the number of running ones for each owner."""

    def __init__(self, seconds: Callable[[str], float] = lambda owner: 0.0) -> None:
        """`seconds`: what an owner has taken, of which those who have less go first."""
        self._seconds = seconds
        self._lines: dict[int, dict[str, _Line]] = {}
        self._waiting: dict[int, WaitingRequest] = {}
        self._owners: dict[str, _Owner] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[WaitingRequest]:
        """In order of arrival."""
        return iter(self._waiting.values())

    def running(self, owner: str) -> int:
        """Return how many of an owner's requests were begun and have not ended; from any thread."""
        found = self._owners.get(owner)
        return found.running if found is not None else 0

    def add(self, waiting: WaitingRequest) -> None:
        """Put a request behind those of its priority and owner.

        An owner without waiting or running requests goes before the owner who had the last turn and behind
        all others, so an owner who sends one request after another cannot starve the others.
        """
        request = waiting.request
        owner = self._owners.setdefault(request.owner, _Owner(self._turn - 1))
        owner.waiting += 1
        lines = self._lines.setdefault(request.priority, {})
        lines.setdefault(request.owner, OrderedDict())[waiting.number] = waiting
        self._waiting[waiting.number] = waiting

    def remove(self, number: int) -> WaitingRequest | None:
        """Take a request out, if it waits."""
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return None
        request = waiting.request
        lines = self._lines[request.priority]
        del lines[request.owner][number]
        if not lines[request.owner]:
            del lines[request.owner]
        if not lines:
            del self._lines[request.priority]
        self._owners[request.owner].waiting -= 1
        self._forget(request.owner)
        return waiting

    def begin(self, waiting: WaitingRequest) -> None:
        """Take out a request that runs from now on: its owner has had a turn."""
        owner = self._owners[waiting.request.owner]
        # Steps of two leave a place before the last turn for a new owner.
        self._turn += 2
        owner.turn = self._turn
        owner.running += 1
        self.remove(waiting.number)

    def pause(self, waiting: WaitingRequest) -> None:
        """Put a request that was running back into the queue, ahead of all others of its owner."""
        self.add(waiting)
        self._lines[waiting.request.priority][waiting.request.owner].move_to_end(waiting.number, last=False)
        self.end(waiting.request.owner)

    def end(self, owner: str) -> None:
        """Note that a request of an owner does not run any more."""
        self._owners[owner].running -= 1
        self._forget(owner)

    def in_turn(self) -> Iterator[WaitingRequest]:
        """All that wait, the next one first, as if each began when it comes. Nothing may change meanwhile."""
        turn = self._turn
        running = {name: owner.running for name, owner in self._owners.items()}
        turns = {name: owner.turn for name, owner in self._owners.items()}
        seconds = {name: self._seconds(name) for name in self._owners}
        for priority in sorted(self._lines, reverse=True):
            lines = {owner: iter(line.values()) for owner, line in self._lines[priority].items()}
            heap = [(running[owner], seconds[owner], turns[owner], owner) for owner in lines]
            heapq.heapify(heap)
            while heap:
                owner = heapq.heappop(heap)[-1]
                waiting = next(lines[owner], None)
                if waiting is None:
                    continue
                yield waiting
                turn += 2
                turns[owner] = turn
                running[owner] += 1
                heapq.heappush(heap, (running[owner], seconds[owner], turn, owner))

    def _forget(self, name: str) -> None:
        owner = self._owners[name]
        if not (owner.waiting or owner.running):
            del self._owners[name]
