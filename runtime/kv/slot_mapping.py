"""Map every position of a sequence to its slots, and list the idle regions."""

from collections.abc import Iterator
from dataclasses import dataclass

from anespec.manifests.schema import BASE_ALIGNMENT
from anespec.runtime.passes import KVCacheGroupShape, RowSlots, VerifierShape
from anespec.system.errors import ArtifactError


@dataclass(frozen=True)
class SlotMapping:
    """The home slot of every position of every region, in every pool.

    In a pool of `region_slots` slots per region, position p of region r has slot
    `r * region_slots + p % token_slots`. A pool without a window holds the whole context, so the remainder is
    p itself; a pool with a window is a ring. Spare slots after these hold no token.

    If `pages` are shorter than a region, the regions' pages are interleaved: first page 0 of every region,
    then page 1 of every region. So short sequences in all regions use the first slots only, and a pass need
    not attend to others.

    A pool of chunks is a ring of one chunk's length, and its rows see their own chunk alone. No run of rows
    crosses the end of a chunk. If passes write `side_by_side`, none crosses the end of a ring.

    Raises:
        ArtifactError: a region is shorter than the context (no window) or than window + block - 1 (window),
            or its size is not a multiple of BASE_ALIGNMENT.
    """

    pools: tuple[KVCacheGroupShape, ...]
    block: int
    context: int
    regions: int
    pages: tuple[int, ...] = ()
    side_by_side: bool = False

    @classmethod
    def of(cls, shape: VerifierShape) -> "SlotMapping":
        """Return the slot mapping of a verifier's state."""
        # Pads also write if rows are side by side, so a ring must have room for the widest pass.
        rows = shape.t_max if shape.side_by_side else shape.block
        return cls(shape.pools, rows, shape.context, shape.sequences, shape.pages, shape.side_by_side)

    def __post_init__(self) -> None:
        for pool in self.pools:
            if pool.is_chunk:
                continue
            needed = self.context if pool.window is None else min(self.context, pool.window + self.block - 1)
            if pool.token_slots < needed:
                raise ArtifactError(
                    f"pool {pool.name} has {pool.token_slots} slots per sequence but needs {needed}; "
                    "convert the model again"
                )
            if self.regions > 1 and pool.region_slots % BASE_ALIGNMENT:
                raise ArtifactError(
                    f"pool {pool.name} has {pool.region_slots} slots per sequence, which is not a multiple "
                    f"of {BASE_ALIGNMENT}; convert the model again"
                )

    @property
    def longest_run(self) -> int:
        """The most rows of one sequence in one pass.

        All K/V of a pass are written before any are read. So in a ring the last row must not overwrite a slot
        that the first row still sees.
        """
        return min(map(self._longest_run_in, self.pools))

    def _longest_run_in(self, pool: KVCacheGroupShape) -> int:
        if pool.is_chunk:
            return min(pool.region_slots, self.context)
        if pool.window is None or pool.token_slots >= self.context:
            return self.context
        return pool.token_slots - pool.window + 1

    def longest_run_from(self, position: int) -> int:
        """Return the most rows of one sequence in one pass whose first row is at `position`."""
        ends = (
            pool.token_slots - position % pool.token_slots
            for pool in self.pools
            if pool.is_chunk or self.side_by_side
        )
        return min((self.longest_run, *ends))

    def runs(self, positions: range, most: int) -> Iterator[range]:
        """Divide consecutive positions into runs that fit one pass each, of `most` rows or fewer."""
        position = positions.start
        while position < positions.stop:
            end = min(position + min(most, self.longest_run_from(position)), positions.stop)
            yield range(position, end)
            position = end

    def first_visible(self, pool: int, position: int) -> int:
        """Return the oldest position that a row at `position` attends to: in a pool of chunks, where its
        chunk begins."""
        shape = self.pools[pool]
        if shape.is_chunk:
            return position - position % shape.region_slots
        return 0 if shape.window is None else max(0, position - shape.window + 1)

    def oldest_after(self, pool: int, end: int) -> int:
        """Return the oldest position whose slot is not overwritten once all positions before `end` are
        written; in a pool of chunks, where the last of them has its chunk's start."""
        shape = self.pools[pool]
        return self.first_visible(pool, end - 1) if shape.is_chunk else end - shape.token_slots

    def slot(self, pool: int, region: int, position: int) -> int:
        """Return the home slot of a position."""
        page = self._page(pool)
        number, offset = divmod(position % self.pools[pool].token_slots, page)
        return (number * self.regions + region) * page + offset

    def place(self, pool: int, slot: int) -> tuple[int, int]:
        """Return a slot's region, and its index among the region's slots, spare ones included."""
        number, offset = divmod(slot, self._page(pool))
        turn, region = divmod(number, self.regions)
        return region, turn * self._page(pool) + offset

    def slot_ranges(self, pool: int, region: int, positions: range) -> tuple[range, ...]:
        """Return the slots of consecutive positions, oldest first: one range for each page that they
        touch."""
        return tuple(self._ranges(pool, region, positions))

    def all_slots(self, pool: int, region: int) -> tuple[range, ...]:
        """Return all slots of a region, the spare ones included."""
        size = self.pools[pool]
        ranges = self.slot_ranges(pool, region, range(size.token_slots))
        spare = ranges[-1].stop
        return (*ranges, range(spare, spare + size.spare_slots)) if size.spare_slots else ranges

    def slots(self, region: int, position: int) -> tuple[RowSlots, ...]:
        """Return the slots of the row at `position` of the sequence in `region`, in every pool."""
        found = []
        for pool in range(len(self.pools)):
            seen = range(self.first_visible(pool, position), position + 1)
            home = self.slot(pool, region, position)
            found.append(RowSlots(home, self.slot_ranges(pool, region, seen)))
        return tuple(found)

    def _page(self, pool: int) -> int:
        return self.pages[pool] if self.pages else self.pools[pool].region_slots

    def _ranges(self, pool: int, region: int, positions: range) -> Iterator[range]:
        page, size = self._page(pool), self.pools[pool].token_slots
        position = positions.start
        while position < positions.stop:
            count = min(page - position % size % page, size - position % size, positions.stop - position)
            first = self.slot(pool, region, position)
            yield range(first, first + count)
            position += count


class Regions:
    """The idle regions, in the order of their last use."""

    def __init__(self, count: int) -> None:
        self._idle = list(range(count))

    @property
    def idle(self) -> tuple[int, ...]:
        """Regions without an active sequence, the least recently used first."""
        return tuple(self._idle)

    def grow(self, first: int, count: int) -> None:
        """Add `count` idle regions, numbered from `first` on."""
        self._idle += range(first, first + count)

    def take(self, region: int) -> None:
        """Make an idle region busy; raise ValueError if it is not idle."""
        self._idle.remove(region)

    def release(self, region: int) -> None:
        """Make a busy region idle, as the most recently used one."""
        if region in self._idle:
            raise ValueError(f"region {region} is idle already")
        self._idle.append(region)
