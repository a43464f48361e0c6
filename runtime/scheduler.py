"""Who waits, who runs, and in which region."""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence

from anespec.runtime.passes import VerifierShape
from anespec.runtime.prefixes import common_prefix
from anespec.runtime.region_store import RegionStore
from anespec.runtime.requests import Event, FinishReason
from anespec.runtime.sequences import ActiveSequence, WaitingRequest
from anespec.runtime.statistics import Ledger


class Scheduler:
    """The queue, by priority and then by arrival, and the active sequences, in order of their turn."""

    def __init__(
        self, shape: VerifierShape, store: RegionStore, shares_prefixes: bool, clock: Callable[[], float]
    ) -> None:
        """`shares_prefixes`: one prompt may go on from what another one left. `clock` gives seconds."""
        self._shape = shape
        self._store = store
        self._shares_prefixes = shares_prefixes
        self._clock = clock
        self._queue: list[WaitingRequest] = []
        self._active: dict[int, ActiveSequence] = {}

    @property
    def waiting(self) -> int:
        """How many requests are in the queue."""
        return len(self._queue)

    @property
    def active(self) -> Sequence[ActiveSequence]:
        """The sequences that have a region; those that waited longest for rows come first."""
        return tuple(self._active.values())

    def enqueue(self, waiting: WaitingRequest) -> None:
        """Put a request behind those of its priority and before those of a lower one."""
        insort(self._queue, waiting, key=lambda other: -other.request.priority)

    def find(self, number: int) -> ActiveSequence | None:
        """An active sequence."""
        return self._active.get(number)

    def withdraw(self, number: int) -> WaitingRequest | None:
        """Take a request out of the queue."""
        found = next((waiting for waiting in self._queue if waiting.number == number), None)
        if found is not None:
            self._queue.remove(found)
        return found

    def admit(self) -> Iterator[ActiveSequence | Event]:
        """Move requests from the queue to idle regions; the new sequences, and the events of requests without
        room for a token, which end at once.

        A request whose prompt begins like one that is being prefilled waits for that one, and keeps its
        place: a region stays free for it.
        """
        regions_left = self._store.idle
        for waiting in tuple(self._queue):
            if not regions_left:
                return
            if len(waiting.prompt) == self._shape.context:
                self._queue.remove(waiting)
                yield waiting.end(self._clock(), FinishReason.CONTEXT)
                continue
            regions_left -= 1
            if not self._gains_by_waiting(waiting):
                sequence = self._activate(waiting)
                self._queue.remove(waiting)
                self._active[sequence.number] = sequence
                yield sequence

    def took_turn(self, sequence: ActiveSequence) -> None:
        """Note that a sequence had rows in a pass: it goes behind the others."""
        self._active[sequence.number] = self._active.pop(sequence.number)

    def retire(self, sequence: ActiveSequence) -> None:
        """Free a sequence's region; what it holds stays until the region is needed."""
        del self._active[sequence.number]
        self._store.release(sequence.region)

    def _gains_by_waiting(self, waiting: WaitingRequest) -> bool:
        """Whether a sequence of its owner in prefill will soon leave more to go on from than there is now.

        That one runs those rows in any case, and two of them at once would take as long as one after the
        other. So waiting costs nothing, unless the rows are so few that they would fit into lanes that stay
        empty: those of one block.
        """
        if not self._shares_prefixes:
            return False
        prompt, owner = waiting.prompt, waiting.request.owner
        awaited = 0
        for sequence in self._active.values():
            if sequence.in_prefill and sequence.request.owner == owner:
                shared = min(common_prefix(sequence.tokens, prompt), len(prompt) - 1)
                awaited = max(awaited, shared if sequence.computed < shared else 0)
        return (
            awaited > self._shape.block and awaited - self._store.reusable(prompt, owner) > self._shape.block
        )

    def _activate(self, waiting: WaitingRequest) -> ActiveSequence:
        request, prompt = waiting.request, waiting.prompt
        admission = self._store.allocate_prefix(prompt, request.owner)
        room = self._shape.context - len(prompt)
        wanted = room + 1 if request.max_tokens is None else request.max_tokens
        now = self._clock()
        return ActiveSequence(
            number=waiting.number,
            request=request,
            sampler=waiting.sampler,
            ledger=Ledger(
                prompt_tokens=len(prompt),
                reused_tokens=admission.reused,
                copied_slots=admission.copied_slots,
                queue_seconds=now - waiting.since,
            ),
            region=admission.region,
            limit=len(prompt) + min(room, wanted),
            finish_at_limit=FinishReason.LENGTH if wanted <= room else FinishReason.CONTEXT,
            tokens=list(prompt),
            computed=admission.reused,
            prefill_end=len(prompt),
            since=now,
        )
