"""What the regions hold, and which of it a new prompt can use again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anespec.runtime.regions import RegionMap


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

    `reused` tokens need no prefill once `copies` are made; there are none where the sequence
    continues in place.
    """

    region: int
    reused: int
    copies: tuple[SlotCopy, ...] = ()


@dataclass
class _Held:
    """A region's content. `held_from[pool]` is the oldest position that a ring has not overwritten."""

    tokens: list[int] = field(default_factory=list)
    held_from: list[int] = field(default_factory=list)


class Prefixes:
    """The tokens whose K/V every region holds, busy or idle."""

    def __init__(self, region_map: RegionMap) -> None:
        self._map = region_map
        self._held = [_Held(held_from=[0] * len(region_map.pools)) for _ in range(region_map.regions)]

    def tokens(self, region: int) -> tuple[int, ...]:
        """The tokens whose K/V the region holds, from position 0 on."""
        return tuple(self._held[region].tokens)

    def reusable(self, region: int, prompt: Sequence[int]) -> int:
        """How many leading tokens of `prompt` need no prefill in `region`.

        At least one prompt token must be run, since its row's logits say what follows. In a pool
        with a window the row after the prefix must still find its whole window; if the ring has
        moved on, nothing can be used.
        """
        held = self._held[region]
        count = min(_common_prefix(held.tokens, prompt), len(prompt) - 1)
        whole = all(
            self._map.first_visible(pool, count) >= oldest for pool, oldest in enumerate(held.held_from)
        )
        return count if whole else 0

    def choose(self, prompt: Sequence[int], idle: Sequence[int]) -> Admission:
        """The idle region for a new sequence; `idle` is not empty, least recently used first.

        The longest prefix wins, wherever it sits. An idle region of which it is the better half is
        continued in place. Otherwise the least recently used region is given up, and the prefix is
        copied there if it sits in a region that is busy or worth keeping.
        """
        lengths = [self.reusable(region, prompt) for region in range(len(self._held))]
        longest = max(lengths)
        spare = {
            region: len(self._held[region].tokens) - longest for region in idle if lengths[region] == longest
        }
        best = min(spare, key=lambda region: spare[region], default=None)
        if longest and best is not None and spare[best] <= longest:
            return Admission(best, longest)
        oldest = idle[0]
        if lengths[oldest] == longest:
            return Admission(oldest, longest)
        return Admission(oldest, longest, self._copies(lengths.index(longest), oldest, longest))

    def clear(self, region: int) -> None:
        """Note that what the region held is being overwritten."""
        self._held[region] = _Held(held_from=[0] * len(self._map.pools))

    def begin(self, admission: Admission, prompt: Sequence[int]) -> None:
        """Note that the region now holds just the reused part of `prompt`."""
        held = self._held[admission.region]
        held.tokens = list(prompt[: admission.reused])
        if admission.copies or not admission.reused:
            held.held_from = [
                self._map.first_visible(pool, admission.reused) for pool in range(len(self._map.pools))
            ]

    def will_write(self, region: int, end: int) -> None:
        """Note that slots up to that of position `end - 1` are about to be written, drafts included."""
        held = self._held[region]
        held.held_from = [
            max(oldest, end - pool.region_slots)
            for oldest, pool in zip(held.held_from, self._map.pools, strict=True)
        ]

    def extend(self, region: int, tokens: Sequence[int]) -> None:
        """Note that the region holds the K/V of these further tokens of its sequence."""
        self._held[region].tokens.extend(tokens)

    def _copies(self, source: int, target: int, count: int) -> tuple[SlotCopy, ...]:
        """What the row at position `count` needs of the prefix, pool by pool."""
        copies = []
        for pool in range(len(self._map.pools)):
            positions = range(self._map.first_visible(pool, count), count)
            for there, here in zip(
                self._map.spans(pool, source, positions),
                self._map.spans(pool, target, positions),
                strict=True,
            ):
                if there:
                    copies.append(SlotCopy(pool, there.start, here.start, len(there)))
        return tuple(copies)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
