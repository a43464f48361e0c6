"""Give the regions of a verifier's state to sequences, and reuse their content for new prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.kv.prefixes import Admission, Prefixes, RingState, RingStates
from anespec.runtime.kv.saved_prefix import SavedPrefix
from anespec.runtime.kv.slot_mapping import Regions, SlotMapping
from anespec.runtime.passes import Verifier
from anespec.runtime.proven import Proven
from anespec.system.errors import AnespecError


@dataclass(frozen=True)
class PoolLoad:
    """The slots of a pool, by use.

    `slots` is their number. `running` slots hold tokens of running sequences, `kept` ones tokens of ended
    sequences, which later prompts may reuse.
    """

    pool: str
    slots: int
    running: int
    kept: int


RING_BYTES = 256 << 20
"""The default budget for saved ring states (see RingStates)."""


class RegionStore:
    """The regions of a verifier's state, and the record of their content.

    The record is changed before the state is. So if a call to the verifier fails, the record claims nothing
    that the state does not hold.
    """

    def __init__(self, verifier: Verifier, proven: Proven, ring_bytes: int = RING_BYTES) -> None:
        """Begin with empty regions; `ring_bytes` is the budget for ring states, 0 for none."""
        shape = verifier.shape
        self._verifier = verifier
        self._shape = shape
        self._map = SlotMapping.of(shape)
        self._chunk = next((number for number, pool in enumerate(shape.pools) if pool.is_chunk), None)
        self._capacity = 0
        self._regions = Regions(0)
        self.use(proven)
        self._rings = RingStates(self._map, ring_bytes)
        self._prefixes = Prefixes(self._map, self._rings)
        self._prompts: dict[int, tuple[int, ...]] = {}
        """By region: the prompt whose ring state should be saved before it is overwritten."""

    def use(self, proven: Proven) -> None:
        """Use newly proven features, which are no fewer than before; the regions keep their content."""
        capacity = self._shape.sequences if proven.region_independent else 1
        self._reuse = proven.reuse_prefixes
        self._regions.grow(self._capacity, capacity - self._capacity)
        self._capacity = capacity

    @property
    def capacity(self) -> int:
        """The number of usable regions."""
        return self._capacity

    @property
    def idle(self) -> int:
        """The number of free regions."""
        return len(self._regions.idle)

    @property
    def loads(self) -> tuple[PoolLoad, ...]:
        """The load of each pool. Any thread may read it; the numbers may then be of two moments."""
        idle = self._regions.idle
        held = [self._prefixes.count(region) for region in range(self._shape.sequences)]
        return tuple(
            PoolLoad(
                pool.name,
                pool.token_slots * self._shape.sequences,
                sum(min(count, pool.token_slots) for region, count in enumerate(held) if region not in idle),
                sum(min(count, pool.token_slots) for region, count in enumerate(held) if region in idle),
            )
            for pool in self._shape.pools
        )

    def tokens(self, region: int) -> tuple[int, ...]:
        """Return the tokens whose K/V a region holds."""
        return self._prefixes.tokens(region)

    def held_from(self, region: int, pool: int) -> int:
        """Return the oldest position that a region's slots in a pool still hold."""
        return self._prefixes.held_from(region, pool)

    def reusable(self, prompt: Sequence[int], tenant: str) -> int:
        """Return how many leading tokens of a tenant's prompt would need no prefill now."""
        if not self._reuse:
            return 0
        return max(self._prefixes.reusable(region, prompt, tenant) for region in range(self._shape.sequences))

    def allocate_prefix(self, prompt: Sequence[int], tenant: str) -> Admission:
        """Take an idle region for the tenant's `prompt`, and put the reusable part of its K/V there."""
        idle = self._regions.idle
        admission = self._prefixes.choose(prompt, idle, tenant) if self._reuse else Admission(min(idle), 0)
        region, state = admission.region, admission.ring_state
        if not admission.is_in_place:
            self._prefixes.clear(region)
        for copy in admission.copies:
            self._verifier.copy_slots(copy.pool, copy.source, copy.target, copy.count)
        if state is not None:
            self._restore(state, region)
        elif self._chunk is not None and admission.source is not None:
            self._verifier.copy_carried(admission.source, region)
        self._prefixes.begin(admission, prompt, tenant)
        self._prompts[region] = tuple(prompt)
        self._regions.take(region)
        return admission

    def release(self, region: int) -> None:
        """Free a region; its content stays until the region is needed."""
        self._regions.release(region)

    def begin_rows(self, region: int, position: int) -> None:
        """Prepare a region for a pass whose first row of its sequence is at `position`.

        The carried state must stand where the chunk of that position begins. A text begins with zeros. If
        the state stands a chunk before, the rows of that chunk are folded into it. If this fails, the region
        holds nothing any more, and its sequence must be prefilled again.

        Raises:
            StateOverflowError: the carried state leaves fp16's range.
        """
        if self._chunk is None:
            return
        if position == 0:
            self._verifier.clear_carried(region)
            return
        start = self._map.first_visible(self._chunk, position)
        if (stands := self.held_from(region, self._chunk)) == start:
            return
        if start != position or stands + self._shape.pools[self._chunk].token_slots != start:
            raise AnespecError(f"the carried state of region {region} stands at {stands}, not at {start}")
        self._keep_rings(region, start + 1)
        try:
            self._verifier.fold(region)
        except BaseException:
            self._prefixes.lose(region)
            raise
        self._prefixes.folded(region, self._chunk, start)

    def will_write(self, region: int, end: int) -> None:
        """Prepare for a pass that writes slots of positions before `end`, also by drafts or pads.

        Ring states that this would overwrite are saved.
        """
        self._keep_rings(region, end)
        self._prefixes.will_write(region, end)

    def extend(self, region: int, tokens: Sequence[int]) -> None:
        """Record that a region holds the K/V of these further tokens of its sequence."""
        self._prefixes.extend(region, tokens)

    def scrub(self, region: int) -> None:
        """Zero a region's slots and its carried state, and forget their content.

        A masked slot contributes 0 x its value. So a NaN in one slot would spoil all later passes, also those
        of other sequences.
        """
        self._prefixes.clear(region)
        self._prompts.pop(region, None)
        for number in range(len(self._shape.pools)):
            one_slot = self._verifier.export_slots(number, 0, 1)
            for slots in self._map.all_slots(number, region):
                zeros = [np.zeros_like(values).repeat(len(slots), axis=2) for values in one_slot]
                self._verifier.import_slots(number, slots.start, zeros)
        if self._chunk is not None:
            self._verifier.clear_carried(region)

    def forget(self) -> None:
        """Record that the whole state is lost."""
        self._prefixes.forget()
        self._rings.clear()

    def save(self, prompt: Sequence[int], tenant: str) -> SavedPrefix | None:
        """Return a copy of the K/V of a tenant's prompt.

        None if no region holds all that the prompt's last row and the row after it attend to.
        """
        pools = range(len(self._shape.pools))
        first = [self._map.first_visible(pool, len(prompt) - 1) for pool in pools]
        for region in range(self._shape.sequences):
            if (
                self._prefixes.tenant(region) == tenant
                and self.tokens(region)[: len(prompt)] == tuple(prompt)
                and all(self.held_from(region, pool) <= first[pool] for pool in pools)
            ):
                values = [self._export(pool, region, range(first[pool], len(prompt))) for pool in pools]
                return SavedPrefix(tuple(prompt), tuple(first), tuple(values), self._carried(region))
        return None

    def restore(self, saved: SavedPrefix, tenant: str) -> bool:
        """Write a prefix to an idle region for the tenant's later prompts; return whether this was possible.

        It is not if prefixes may not be reused, no region is idle, or the prefix has another shape.
        """
        idle = self._regions.idle
        if not (self._reuse and idle and self._fits(saved)):
            return False
        region = min((each for each in idle if not self.tokens(each)), default=idle[0])
        self._prefixes.clear(region)
        self._prompts.pop(region, None)
        for pool, (first, values) in enumerate(zip(saved.first, saved.values, strict=True)):
            done = 0
            for slots in self._map.slot_ranges(pool, region, range(first, len(saved.tokens))):
                part = [array[:, :, done : done + len(slots)] for array in values]
                self._verifier.import_slots(pool, slots.start, part)
                done += len(slots)
        if self._chunk is not None:
            self._verifier.import_carried(region, saved.carried)
        self._prefixes.hold(region, saved.tokens, saved.first, tenant)
        return True

    def _export(self, pool: int, region: int, positions: range) -> tuple[NDArray[np.float16], ...]:
        """Return the K/V of consecutive positions, one array per state."""
        parts = [
            self._verifier.export_slots(pool, slots.start, len(slots))
            for slots in self._map.slot_ranges(pool, region, positions)
        ]
        return tuple(np.concatenate(arrays, axis=2) for arrays in zip(*parts, strict=True))

    def _carried(self, region: int) -> tuple[NDArray[np.float16], ...]:
        """Return a region's carried state, empty for a model without recurrent layers."""
        return () if self._chunk is None else tuple(self._verifier.export_carried(region))

    def _fits(self, saved: SavedPrefix) -> bool:
        """Return whether a prefix has this state's shape and is finite; a NaN would spoil all passes."""
        count, pools = len(saved.tokens), range(len(self._shape.pools))
        if not 0 < count <= self._shape.context or len(saved.values) != len(pools):
            return False
        if saved.first != tuple(self._map.first_visible(pool, count - 1) for pool in pools):
            return False
        if not all(0 <= token < self._shape.vocabulary for token in saved.tokens):
            return False
        for pool, arrays in zip(pools, saved.values, strict=True):
            shapes = [
                (one.shape[0], one.shape[1], count - saved.first[pool], one.shape[3])
                for one in self._verifier.export_slots(pool, 0, 1)
            ]
            if [array.shape for array in arrays] != shapes:
                return False
        if [array.shape for array in saved.carried] != [array.shape for array in self._carried(0)]:
            return False
        return all(bool(np.isfinite(array).all()) for part in saved.parts for array in part)

    def _keep_rings(self, region: int, end: int) -> None:
        """Save the ring state of a region's prompt if writing positions before `end` would overwrite it."""
        prompt = self._prompts.get(region)
        if prompt is None or not self._reuse:
            return
        last = len(prompt) - 1
        needed = {
            number: self._map.first_visible(number, last)
            for number, pool in enumerate(self._shape.pools)
            if pool.window is not None or pool.is_chunk
        }
        if all(self._map.oldest_after(pool, end) <= oldest for pool, oldest in needed.items()):
            return
        if len(self.tokens(region)) < len(prompt):
            return
        del self._prompts[region]
        tenant = self._prefixes.tenant(region)
        if self._rings.has(tenant, prompt) or any(
            self.held_from(region, pool) > oldest for pool, oldest in needed.items()
        ):
            return
        least = last if self._chunk is None else needed[self._chunk]
        first = {
            pool: max(self._map.first_visible(pool, least), self.held_from(region, pool)) for pool in needed
        }
        while any(self._map.first_visible(pool, least) < oldest for pool, oldest in first.items()):
            least += 1
        values = {
            pool: tuple(
                self._verifier.export_slots(pool, slots.start, len(slots))
                for slots in self._map.slot_ranges(pool, region, range(oldest, len(prompt)))
            )
            for pool, oldest in first.items()
        }
        self._rings.keep(RingState(tenant, prompt, least, first, values, self._carried(region)))

    def _restore(self, state: RingState, region: int) -> None:
        """Write a ring state to the slots of a region."""
        for pool, values in state.values.items():
            positions = range(state.first[pool], len(state.tokens))
            for slots, part in zip(self._map.slot_ranges(pool, region, positions), values, strict=True):
                self._verifier.import_slots(pool, slots.start, part)
        if self._chunk is not None:
            self._verifier.import_carried(region, state.carried)
