"""Record which tokens' K/V each region holds, and choose what a new prompt can reuse."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.kv.slot_mapping import SlotMapping

# A pool with a window is a ring: the K/V of an answer overwrite the window at the prompt's end. But the next
# turn, or the same prompt again, needs that window. So its slots are exported before they are overwritten,
# within a budget of bytes.
#
# The same holds for recurrent layers: an answer overwrites the last chunk of its prompt, and moves the
# carried state on. What is kept is that chunk's rows and the state at its start. So it serves every prefix
# that ends in the chunk: the whole prompt, and what a next turn shares of it if it changes the prompt's end.

SlotValues = Sequence[NDArray[np.float16]]


@dataclass(frozen=True)
class RingState:
    """The K/V of the last positions of a tenant's prompt, in every pool with a window or of chunks.

    `values[pool]` holds the positions from `first[pool]` to the prompt's end, oldest first: for each stretch
    of slots the arrays that `Verifier.export_slots` returned. `carried` is the carried state at the first
    position of the chunk, as `Verifier.export_carried` returned it. It serves the first `least` tokens of the
    prompt, and any more of them.
    """

    tenant: str
    tokens: tuple[int, ...]
    least: int
    first: Mapping[int, int]
    values: Mapping[int, tuple[SlotValues, ...]]
    carried: SlotValues = ()

    @property
    def bytes(self) -> int:
        """The size of the arrays."""
        slots = sum(array.nbytes for pool in self.values.values() for part in pool for array in part)
        return slots + sum(array.nbytes for array in self.carried)


class RingStates:
    """A cache of ring states by tenant and prompt; the least recently used are dropped first."""

    def __init__(self, region_map: SlotMapping, budget: int) -> None:
        """Begin empty; `budget` is the most bytes to keep."""
        self._map = region_map
        self._budget = budget
        self._kept: OrderedDict[tuple[str, tuple[int, ...]], RingState] = OrderedDict()

    @property
    def bytes(self) -> int:
        """The size of all states."""
        return sum(state.bytes for state in self._kept.values())

    def keep(self, state: RingState) -> None:
        """Keep a state, and drop the least recently used ones until the budget is met."""
        if state.bytes > self._budget:
            return
        key = (state.tenant, state.tokens)
        self._kept[key] = state
        self._kept.move_to_end(key)
        while self.bytes > self._budget:
            self._kept.popitem(last=False)

    def has(self, tenant: str, tokens: tuple[int, ...]) -> bool:
        """Return whether the state at the end of exactly this prompt is saved; this counts as a use."""
        if (tenant, tokens) not in self._kept:
            return False
        self._kept.move_to_end((tenant, tokens))
        return True

    def longest(self, prompt: Sequence[int], most: int, tenant: str) -> tuple[int, RingState | None]:
        """Return the longest prefix of `prompt`, up to `most` tokens, from which a state of the tenant lets
        the prompt continue, and that state; (0, None) if there is none.
        """
        best: tuple[int, RingState | None] = (0, None)
        for state in self._kept.values():
            longest = min(len(state.tokens), most)
            if tenant != state.tenant or longest <= best[0] or longest < state.least:
                continue
            count = common_prefix(state.tokens[:longest], prompt)
            if count >= state.least and count > best[0]:
                best = count, state
        return best

    def clear(self) -> None:
        """Drop all states."""
        self._kept.clear()


_STRETCH = 256
"""Tokens that `common_prefix` compares at a time."""


@dataclass(frozen=True)
class SlotCopy:
    """The arguments of `Verifier.copy_slots`: copy `count` slots of a pool."""

    pool: int
    source: int
    target: int
    count: int


@dataclass(frozen=True)
class Admission:
    """The region for a new sequence, and the part of its prompt that needs no prefill.

    The first `reused` tokens need no prefill once `copies` are made and `ring_state` is written back. If both
    have nothing of a carried state, that of the region `source` is copied too. All are empty if the sequence
    continues in place.
    """

    region: int
    reused: int
    copies: tuple[SlotCopy, ...] = ()
    ring_state: RingState | None = None
    source: int | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether nothing is copied or written back."""
        return self.source is None and self.ring_state is None

    @property
    def copied_slots(self) -> int:
        """The number of slots that are copied or written back."""
        written = 0
        if self.ring_state is not None:
            written = sum(len(self.ring_state.tokens) - first for first in self.ring_state.first.values())
        return written + sum(copy.count for copy in self.copies)


@dataclass(frozen=True)
class _Reusable:
    """The number of leading tokens that need no prefill, and the ring state that this requires."""

    count: int
    ring_state: RingState | None = None


@dataclass
class _Held:
    """A region's content. `held_from[pool]` is the oldest position that a ring has not overwritten.

    In a pool of chunks it is the position at which the carried state stands. Rows of the chunk before it are
    of no use.
    """

    tenant: str = ""
    tokens: list[int] = field(default_factory=list)
    held_from: list[int] = field(default_factory=list)


class Prefixes:
    """The record of each region's content, busy or idle: the tokens whose K/V it holds, and their tenant.

    Nothing is reused for another tenant, since the time to the first token would reveal the other tenant's
    prompts. The eviction of a tenant's prefix only reveals that others were served, not their prompts.
    """

    def __init__(self, region_map: SlotMapping, ring_states: RingStates | None = None) -> None:
        self._map = region_map
        self._rings = RingStates(region_map, 0) if ring_states is None else ring_states
        # A model that keeps nothing of older positions can continue from a ring state in any region.
        self._keeps_all = all(pool.window is not None or pool.is_chunk for pool in region_map.pools)
        self._held = [_Held(held_from=[0] * len(region_map.pools)) for _ in range(region_map.regions)]

    def tokens(self, region: int) -> tuple[int, ...]:
        """Return the tokens whose K/V the region holds, from position 0 on."""
        return tuple(self._held[region].tokens)

    def count(self, region: int) -> int:
        """Return the number of tokens whose K/V the region holds; any thread may call this."""
        return len(self._held[region].tokens)

    def tenant(self, region: int) -> str:
        """Return the tenant whose tokens the region holds."""
        return self._held[region].tenant

    def reusable(self, region: int, prompt: Sequence[int], tenant: str = "") -> int:
        """Return how many leading tokens of the tenant's `prompt` need no prefill in `region`.

        At least one prompt token must run, since its row's logits give the next token. In a pool with a
        window, the whole window of the row after the prefix must still be there; if the ring has moved on, a
        saved ring state may serve a shorter prefix. So it is if a carried state stands behind the prefix.
        """
        return self._reusable(region, prompt, tenant).count

    def _reusable(self, region: int, prompt: Sequence[int], tenant: str) -> _Reusable:
        held = self._held[region]
        count = 0
        if held.tenant == tenant:
            count = min(common_prefix(held.tokens, prompt), len(prompt) - 1)
        whole = all(
            self._map.first_visible(pool, count) >= oldest for pool, oldest in enumerate(held.held_from)
        )
        if whole and not self._keeps_all:
            return _Reusable(count)
        most = len(prompt) - 1 if self._keeps_all else count
        kept = _Reusable(*self._rings.longest(prompt, most, tenant))
        return _Reusable(count) if whole and count >= kept.count else kept

    def choose(self, prompt: Sequence[int], idle: Sequence[int], tenant: str = "") -> Admission:
        """Choose an idle region for a new sequence; `idle` is not empty, least recently used first.

        The longest reusable prefix in any region is taken. If it makes up at least half of an idle region's
        tokens, the sequence continues in that region. Otherwise it gets the lowest empty region (so that the
        spans of passes stay short), or else the least recently used one, and the prefix is copied there.
        """
        found = [self._reusable(region, prompt, tenant) for region in range(len(self._held))]
        longest = max(reusable.count for reusable in found)
        spare = {
            region: len(self._held[region].tokens) - longest
            for region in idle
            if found[region].count == longest
        }
        best = min(spare, key=lambda region: spare[region], default=None)
        if longest and best is not None and spare[best] <= longest:
            return Admission(best, longest, ring_state=found[best].ring_state)
        target = min((region for region in idle if not self._held[region].tokens), default=idle[0])
        if found[target].count == longest:
            return Admission(target, longest, ring_state=found[target].ring_state)
        source = next(region for region, reusable in enumerate(found) if reusable.count == longest)
        state = found[source].ring_state
        copies = self._copies(source, target, longest, state)
        return Admission(target, longest, copies, state, source)

    def forget(self) -> None:
        """Record that no region holds anything."""
        for region in range(len(self._held)):
            self.clear(region)

    def clear(self, region: int) -> None:
        """Record that the region's content is being overwritten."""
        self._held[region] = _Held(held_from=[0] * len(self._map.pools))

    def hold(self, region: int, tokens: Sequence[int], held_from: Sequence[int], tenant: str = "") -> None:
        """Record that a saved prefix was written to the region, in each pool from `held_from[pool]` on."""
        self._held[region] = _Held(tenant, list(tokens), list(held_from))

    def begin(self, admission: Admission, prompt: Sequence[int], tenant: str = "") -> None:
        """Record that the region now holds only the reused part of the tenant's `prompt`."""
        held = self._held[admission.region]
        held.tenant = tenant
        held.tokens = list(prompt[: admission.reused])
        if not admission.is_in_place or not admission.reused:
            held.held_from = [
                self._carried_to(admission, pool)
                if shape.is_chunk
                else self._map.first_visible(pool, admission.reused)
                for pool, shape in enumerate(self._map.pools)
            ]

    def _carried_to(self, admission: Admission, pool: int) -> int:
        """Return where the carried state of an admission's region stands."""
        if admission.ring_state is not None:
            return admission.ring_state.first[pool]
        return 0 if admission.source is None else self._held[admission.source].held_from[pool]

    def held_from(self, region: int, pool: int) -> int:
        """Return the oldest position that the region's slots in a pool still hold, or where its carried state
        stands if the pool is of chunks."""
        return self._held[region].held_from[pool]

    def lose(self, region: int) -> None:
        """Record that the region holds nothing of its sequence any more."""
        held = self._held[region]
        self._held[region] = _Held(held.tenant, held_from=[0] * len(self._map.pools))

    def folded(self, region: int, pool: int, position: int) -> None:
        """Record that the region's carried state stands at `position`, where the next chunk begins."""
        self._held[region].held_from[pool] = position

    def will_write(self, region: int, end: int) -> None:
        """Record that the slots of positions before `end` are about to be written, also by drafts or pads.

        A pool of chunks loses nothing: what is written is of the chunk at whose start its carried state
        stands, and pads write nothing there.
        """
        held = self._held[region]
        held.held_from = [
            oldest if shape.is_chunk else max(oldest, self._map.oldest_after(pool, end))
            for pool, (oldest, shape) in enumerate(zip(held.held_from, self._map.pools, strict=True))
        ]

    def extend(self, region: int, tokens: Sequence[int]) -> None:
        """Record that the region holds the K/V of these further tokens of its sequence."""
        self._held[region].tokens.extend(tokens)

    def _copies(
        self, source: int, target: int, count: int, ring_state: RingState | None
    ) -> tuple[SlotCopy, ...]:
        """Return the copies of the slots that the row at position `count` sees and the ring state does not
        hold, and of the chunk that the carried state has not passed."""
        copies = []
        for pool, shape in enumerate(self._map.pools):
            if ring_state is not None and pool in ring_state.values:
                continue
            held_from = self._held[source].held_from[pool]
            first = held_from if shape.is_chunk else self._map.first_visible(pool, count)
            positions = range(first, count)
            for there, here in zip(
                self._map.slot_ranges(pool, source, positions),
                self._map.slot_ranges(pool, target, positions),
                strict=True,
            ):
                if there:
                    copies.append(SlotCopy(pool, there.start, here.start, len(there)))
        return tuple(copies)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of equal leading tokens."""
    size = min(len(a), len(b))
    same = 0
    # Slices are compared in C. This pays since prompts of many thousand tokens often share long prefixes.
    while same < size and list(a[same : same + _STRETCH]) == list(b[same : same + _STRETCH]):
        same += _STRETCH
    pairs = zip(a[same : same + _STRETCH], b[same : same + _STRETCH], strict=False)
    return min(size, same + next((i for i, (x, y) in enumerate(pairs) if x != y), size))
