"""The content of the regions, and which of it a new prompt can reuse."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.kv.slot_mapping import SlotMapping

# The contents of rings at the ends of prompts, saved so that a later prompt can continue from there.
#
# A pool with a window is a ring: an answer overwrites the window that a second turn, or the same prompt
# again, would need. So its slots are exported before that happens, within a budget of bytes.

SlotValues = Sequence[NDArray[np.float16]]


@dataclass(frozen=True)
class RingState:
    """The last positions of a tenant's prompt in every pool with a window.

    `values[pool]` has what `Verifier.export_slots` returned for each stretch of slots of the positions from
    `first[pool]` to the prompt's end, oldest first.
    """

    tenant: str
    tokens: tuple[int, ...]
    first: Mapping[int, int]
    values: Mapping[int, tuple[SlotValues, ...]]

    @property
    def bytes(self) -> int:
        """Its bytes in memory."""
        return sum(array.nbytes for pool in self.values.values() for part in pool for array in part)


class RingStates:
    """Ring states by their tenants and prompts, the least recently used given up first."""

    def __init__(self, region_map: SlotMapping, budget: int) -> None:
        """`budget` is in bytes."""
        self._map = region_map
        self._budget = budget
        self._kept: OrderedDict[tuple[str, tuple[int, ...]], RingState] = OrderedDict()

    @property
    def bytes(self) -> int:
        """The bytes of all of them."""
        return sum(state.bytes for state in self._kept.values())

    def keep(self, state: RingState) -> None:
        """Keep a state, and give up the oldest ones that no longer fit the budget."""
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
        """The most leading tokens, `most` at most, that a state of the tenant lets `prompt` go on from; or 0.

        A state serves its whole prompt, and its prompt but for the last token.
        """
        best: tuple[int, RingState | None] = (0, None)
        for state in self._kept.values():
            size = len(state.tokens)
            count = min(size, most)
            if tenant != state.tenant or count <= best[0] or count < size - 1:
                continue
            if tuple(prompt[:count]) == state.tokens[:count]:
                best = count, state
        return best

    def clear(self) -> None:
        """Give up all of them."""
        self._kept.clear()


_STRETCH = 256


@dataclass(frozen=True)
class SlotCopy:
    """`count` slots of a pool to be copied, as `Verifier.copy_slots` takes them."""

    pool: int
    source: int
    target: int
    count: int


@dataclass(frozen=True)
class Admission:
    """The region that a new sequence takes, and how much of its prompt is there already.

    `reused` tokens need no prefill once `copies` are made and the rings hold `ring_state` again; neither is
    there where the sequence continues in place.
    """

    region: int
    reused: int
    copies: tuple[SlotCopy, ...] = ()
    ring_state: RingState | None = None

    @property
    def copied_slots(self) -> int:
        """Slots that are copied or written back."""
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
    """A region's content. `held_from[pool]` is the oldest position that a ring has not overwritten."""

    tenant: str = ""
    tokens: list[int] = field(default_factory=list)
    held_from: list[int] = field(default_factory=list)


class Prefixes:
    """The tokens whose K/V every region holds, busy or idle, and their tenants.

    Nothing is reused for another tenant, since the time to the first token would reveal the other tenant's
    prompts. The eviction of a tenant's prefix only reveals that others were served, not their prompts.
    """

    def __init__(self, region_map: SlotMapping, ring_states: RingStates | None = None) -> None:
        self._map = region_map
        self._rings = RingStates(region_map, 0) if ring_states is None else ring_states
        self._held = [_Held(held_from=[0] * len(region_map.pools)) for _ in range(region_map.regions)]

    def tokens(self, region: int) -> tuple[int, ...]:
        """The tokens whose K/V the region holds, from position 0 on."""
        return tuple(self._held[region].tokens)

    def count(self, region: int) -> int:
        """Return the number of those tokens; from any thread."""
        return len(self._held[region].tokens)

    def tenant(self, region: int) -> str:
        """Whose tokens the region holds."""
        return self._held[region].tenant

    def reusable(self, region: int, prompt: Sequence[int], tenant: str = "") -> int:
        """How many leading tokens of the tenant's `prompt` need no prefill in `region`.

        At least one prompt token must run, since its row's logits give the next token. In a pool with a
        window, the whole window of the row after the prefix must still be there; if the ring has moved on, a
        saved ring state may serve a shorter prefix.
        """
        return self._reusable(region, prompt, tenant).count

    def _reusable(self, region: int, prompt: Sequence[int], tenant: str) -> _Reusable:
        held = self._held[region]
        if held.tenant != tenant:
            return _Reusable(0)
        count = min(common_prefix(held.tokens, prompt), len(prompt) - 1)
        whole = all(
            self._map.first_visible(pool, count) >= oldest for pool, oldest in enumerate(held.held_from)
        )
        return _Reusable(count) if whole else _Reusable(*self._rings.longest(prompt, count, tenant))

    def choose(self, prompt: Sequence[int], idle: Sequence[int], tenant: str = "") -> Admission:
        """The idle region for a new sequence; `idle` is not empty, least recently used first.

        The longest prefix wins, wherever it sits. An idle region of which it is the better half is
        continued in place. Otherwise a region is given up, the lowest of those that hold nothing (so that
        passes need not look far) or the least recently used, and the prefix is copied there if it sits in a
        region that is busy or worth keeping.
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
        return Admission(target, longest, self._copies(source, target, longest, state), state)

    def forget(self) -> None:
        """Note that no region holds anything."""
        for region in range(len(self._held)):
            self.clear(region)

    def clear(self, region: int) -> None:
        """Note that what the region held is being overwritten."""
        self._held[region] = _Held(held_from=[0] * len(self._map.pools))

    def hold(self, region: int, tokens: Sequence[int], held_from: Sequence[int], tenant: str = "") -> None:
        """Note that the region holds a prefix that came from elsewhere, from `held_from[pool]` on."""
        self._held[region] = _Held(tenant, list(tokens), list(held_from))

    def begin(self, admission: Admission, prompt: Sequence[int], tenant: str = "") -> None:
        """Note that the region now holds just the reused part of the tenant's `prompt`."""
        held = self._held[admission.region]
        held.tenant = tenant
        held.tokens = list(prompt[: admission.reused])
        if admission.copies or admission.ring_state is not None or not admission.reused:
            held.held_from = [
                self._map.first_visible(pool, admission.reused) for pool in range(len(self._map.pools))
            ]

    def held_from(self, region: int, pool: int) -> int:
        """The oldest position whose slot in a pool still holds it."""
        return self._held[region].held_from[pool]

    def will_write(self, region: int, end: int) -> None:
        """Note that slots up to that of position `end - 1` are about to be written, by drafts or pads too."""
        held = self._held[region]
        held.held_from = [
            max(oldest, end - pool.token_slots)
            for oldest, pool in zip(held.held_from, self._map.pools, strict=True)
        ]

    def extend(self, region: int, tokens: Sequence[int]) -> None:
        """Note that the region holds the K/V of these further tokens of its sequence."""
        self._held[region].tokens.extend(tokens)

    def _copies(
        self, source: int, target: int, count: int, ring_state: RingState | None
    ) -> tuple[SlotCopy, ...]:
        """Return the slots that the row at position `count` needs of the prefix in addition to a ring state,
        by pool."""
        copies = []
        for pool in range(len(self._map.pools)):
            if ring_state is not None and pool in ring_state.values:
                continue
            positions = range(self._map.first_visible(pool, count), count)
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
    # Whole stretches compare at the speed of C, and prompts of many thousand tokens mostly are the same.
    while same < size and list(a[same : same + _STRETCH]) == list(b[same : same + _STRETCH]):
        same += _STRETCH
    pairs = zip(a[same : same + _STRETCH], b[same : same + _STRETCH], strict=False)
    return min(size, same + next((i for i, (x, y) in enumerate(pairs) if x != y), size))
