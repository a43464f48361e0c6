"""One token sequence played to a verifier in many ways: what the gates compare bit by bit.

A *scene* says which tokens stand at which positions. A *play* says how they are cut into passes, in
which lanes they stand and what stands beside them. Every play of a scene must leave the same bits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import Logits, Row, RowKind, RowSlots, Verifier, all_logits, run_pass, whole_plan
from anespec.runtime.regions import RegionMap

SLOTS_AT_ONCE = 4096
"""How many slots are exported or imported in one call, which bounds the memory of a check."""

SLOTS_OF_NOISE = 256
"""How many slots of loud values are made; more slots repeat them."""

FP16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Cell:
    """One lane of a planned pass: a row that has no slots yet.

    `recorded` is False for rows whose logits nobody compares: pads, wrong drafts, other sequences.
    A pad stands at `position` only to look at that position's slot.
    """

    kind: RowKind
    token: int
    position: int
    region: int = 0
    recorded: bool = False


Lanes = tuple[Cell, ...]


@dataclass(frozen=True)
class Scene:
    """`tokens` stand at positions `start` and on. The past before them is laid once.

    The past is made of the K/V of `past`, run through the model, and copies of it up to `start`.
    """

    past: tuple[int, ...]
    start: int
    tokens: tuple[int, ...]

    @property
    def positions(self) -> range:
        """The positions that every play of this scene visits."""
        return range(self.start, self.start + len(self.tokens))

    def cell(self, index: int, kind: RowKind = RowKind.PROMPT) -> Cell:
        """The row of token number `index`."""
        return Cell(kind, self.tokens[index], self.start + index, recorded=True)


@dataclass(frozen=True)
class Play:
    """A named way to run a scene."""

    name: str
    passes: tuple[Lanes, ...]
    wants_logits: bool = True


@dataclass(frozen=True)
class Recording:
    """What a play left: logits and K/V bits by position, and what was not finite.

    `logits[p]` is fp16 [vocabulary], `states[p]` one fp16 array per state of every pool. A position
    whose home slot a ring has since given to a later one is absent from `states`.
    """

    logits: Mapping[int, Logits]
    states: Mapping[int, tuple[NDArray[np.float16], ...]]
    not_finite: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """The comparison of two recordings: `cases` positions, of which `unequal` differ in some bit."""

    cases: int = 0
    unequal: int = 0
    largest: float = 0.0
    first: str = ""

    def __add__(self, other: "Difference") -> "Difference":
        return Difference(
            self.cases + other.cases,
            self.unequal + other.unequal,
            max(self.largest, other.largest),
            self.first or other.first,
        )


def row_of(cell: Cell, region_map: RegionMap) -> Row:
    """Give a cell its slots; a pad writes nowhere and sees the one slot of its position."""
    places = region_map.slots(cell.region, cell.position)
    if cell.kind is RowKind.PAD:
        places = tuple(_looking_at(place) for place in places)
    return Row(cell.kind, cell.token, cell.position, places)


def _looking_at(place: RowSlots) -> RowSlots:
    slot = place.home or 0
    return RowSlots(None, (range(slot, slot + 1),))


def padded(cells: Sequence[Cell], width: int, lane: int = 0) -> Lanes:
    """`cells` from `lane` on in a pass of `width` lanes, the others pads that see the first cell's slot."""
    pad = Cell(RowKind.PAD, 0, cells[0].position, cells[0].region)
    after = width - lane - len(cells)
    return (pad,) * lane + tuple(cells) + (pad,) * after


def one_row_a_pass(scene: Scene, width: int, lane: int = 0) -> Play:
    """Every token alone in its pass, in one lane, beside pads."""
    count = len(scene.tokens)
    passes = tuple(padded([scene.cell(i, RowKind.CARRY)], width, lane) for i in range(count))
    return Play(f"one row a pass in lane {lane} of {width}", passes)


def lane_after_lane(scene: Scene, width: int) -> Play:
    """Every token alone in its pass, each in the lane after the last one's: from lane 1 on, all in turn."""
    count = len(scene.tokens)
    passes = tuple(padded([scene.cell(i, RowKind.CARRY)], width, (i + 1) % width) for i in range(count))
    return Play(f"one row a pass in lanes 1, 2 and on of {width}", passes)


def cut(scene: Scene, sizes: Sequence[int], width: int) -> Play:
    """The tokens cut into passes of `sizes` rows (repeated as needed), filled up with pads."""
    passes: list[Lanes] = []
    done = 0
    while done < len(scene.tokens):
        size = min(sizes[len(passes) % len(sizes)], len(scene.tokens) - done)
        passes.append(padded([scene.cell(i) for i in range(done, done + size)], width))
        done += size
    return Play(f"cut into {'+'.join(map(str, sizes))} rows in {width} lanes", tuple(passes))


def speculated(
    scene: Scene,
    accepted: Sequence[int],
    width: int,
    vocabulary: int,
    rng: np.random.Generator,
    context: int | None = None,
) -> Play:
    """A carry row and drafts in every pass: the first `accepted` of them right, the others wrong.

    `accepted` is repeated as needed. A wrong draft is any token but the right one. Nothing is drafted past
    the end of a `context`; pads take those lanes.
    """
    passes: list[Lanes] = []
    done, count = 0, len(scene.tokens)
    while done < count:
        right = min(accepted[len(passes) % len(accepted)], width - 1, count - done - 1)
        cells = [scene.cell(done, RowKind.CARRY)]
        cells += [scene.cell(done + i, RowKind.DRAFT) for i in range(1, right + 1)]
        for index in range(done + right + 1, done + width):
            true = scene.tokens[index] if index < count else 0
            wrong = (true + 1 + int(rng.integers(max(1, vocabulary - 1)))) % vocabulary
            if context is None or scene.start + index < context:
                cells.append(Cell(RowKind.DRAFT, wrong, scene.start + index))
        passes.append(padded(cells, width))
        done += right + 1
    return Play(f"drafts of which {'+'.join(map(str, accepted))} are accepted", tuple(passes))


def with_random_pads(play: Play, scene: Scene, vocabulary: int, rng: np.random.Generator) -> Play:
    """The same rows in the same lanes beside pads of other tokens that see other slots."""
    passes = tuple(
        tuple(
            replace(
                cell,
                token=int(rng.integers(vocabulary)),
                position=int(rng.integers(scene.start + 1)),
            )
            if cell.kind is RowKind.PAD
            else cell
            for cell in lanes
        )
        for lanes in play.passes
    )
    return Play(f"{play.name}, other pads", passes)


def with_another_sequence(
    play: Play, region: int, vocabulary: int, rng: np.random.Generator, context: int | None = None
) -> Play:
    """Every pad becomes a row of a sequence that grows in another region.

    Where the next pass would take it past the end of a `context`, another sequence starts there.
    """
    passes: list[Lanes] = []
    position = 0
    for lanes in play.passes:
        cells = []
        if context is not None and position + sum(cell.kind is RowKind.PAD for cell in lanes) > context:
            position = 0
        for cell in lanes:
            if cell.kind is RowKind.PAD:
                cells.append(Cell(RowKind.PROMPT, int(rng.integers(vocabulary)), position, region))
                position += 1
            else:
                cells.append(cell)
        passes.append(tuple(cells))
    return Play(f"{play.name}, beside another sequence", tuple(passes))


def in_region(play: Play, region: int) -> Play:
    """The same play at another base."""
    passes = tuple(tuple(replace(cell, region=region) for cell in lanes) for lanes in play.passes)
    return Play(f"{play.name} in region {region}", passes, play.wants_logits)


class Stage:
    """A verifier with the means to lay a past, run plays on it, record them, and sweep up.

    The verifier's state must belong to nobody else meanwhile; `clear` leaves it as zeros.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.shape = verifier.shape
        self.map = RegionMap.of(self.shape)
        self._pools = range(len(self.shape.pools))
        self._one_slot = [verifier.export_slots(pool, 0, 1) for pool in self._pools]
        self._untouched: list[_Excerpt] = []

    def clear(self) -> None:
        """Zero every slot of every pool."""
        for pool, first, count in self._all_slots():
            shapes = [(1, one.shape[1], count, one.shape[3]) for one in self._one_slot[pool]]
            self.verifier.import_slots(pool, first, [np.zeros(shape, np.float16) for shape in shapes])

    def prepare(self, scene: Scene, region: int = 0) -> None:
        """Clear everything, then fill positions 0..start-1 of a region.

        `past` is run in whole blocks; its K/V is repeated as often as it takes.
        """
        self.clear()
        width, past = self.shape.block, scene.past[: scene.start]
        cells = [Cell(RowKind.PROMPT, token, p, region) for p, token in enumerate(past)]
        for first in range(0, len(cells), width):
            rows = tuple(row_of(cell, self.map) for cell in padded(cells[first : first + width], width))
            run_pass(self.verifier, whole_plan(self.shape, rows, wants_logits=False))
        if past:
            for pool in self._pools:
                self._tile_past(pool, region, len(past), scene.start)
        self._untouched = [
            _Excerpt(pool, span.start, self.verifier.export_slots(pool, span.start, len(span)))
            for pool in self._pools
            for span in self._touchable(pool, scene, region)
        ]

    def _tile_past(self, pool: int, region: int, filled: int, wanted: int) -> None:
        """Repeat the K/V of the first `filled` positions up to position `wanted`, in one import."""
        size = self.shape.pools[pool].region_slots
        base, missing = self._slot(pool, region, 0), min(wanted, size) - filled
        if missing > 0:
            sources = np.arange(missing) % filled
            real = self.verifier.export_slots(pool, base, filled)
            self.verifier.import_slots(pool, base + filled, [values[:, :, sources] for values in real])

    def restore(self) -> None:
        """Put back what a play of the prepared scene has overwritten."""
        for excerpt in self._untouched:
            self.verifier.import_slots(excerpt.pool, excerpt.first, excerpt.values)

    def restore_past(self, scene: Scene, region: int = 0) -> None:
        """Put back only what a play has overwritten of the past that the scene's first row sees.

        A ring's slots come round again, so a long scene runs over its own past; nothing in use ever goes
        back so far.
        """
        for excerpt in self._untouched:
            for span in self._past_in_sight(excerpt.pool, scene, region):
                first = max(span.start, excerpt.first)
                count = min(span.stop, excerpt.first + excerpt.values[0].shape[2]) - first
                if count > 0:
                    kept = slice(first - excerpt.first, first - excerpt.first + count)
                    values = [values[:, :, kept] for values in excerpt.values]
                    self.verifier.import_slots(excerpt.pool, first, values)

    def copy_past(self, scene: Scene, source: int, target: int) -> None:
        """Copy the K/V of positions 0..start-1 from one region to another."""
        for pool in self._pools:
            count = min(scene.start, self.shape.pools[pool].region_slots)
            if count:
                self.verifier.copy_slots(
                    pool, self._slot(pool, source, 0), self._slot(pool, target, 0), count
                )

    def run(self, play: Play, scene: Scene, region: int = 0) -> Recording:
        """Run every pass of `play` and record the scene's positions in `region`."""
        logits: dict[int, Logits] = {}
        not_finite: list[str] = []
        for number, lanes in enumerate(play.passes):
            rows = tuple(row_of(cell, self.map) for cell in lanes)
            plan = whole_plan(self.shape, rows, wants_logits=play.wants_logits)
            for lane, found in run_pass(self.verifier, plan).items():
                cell, row = lanes[lane], all_logits(found)
                if not is_finite(row):
                    not_finite.append(
                        f"a logit of the {cell.kind} row in lane {lane} of pass {number} is not finite"
                    )
                if cell.recorded:
                    logits[cell.position] = np.array(row, np.float16)
        states = self._home_states(scene.positions, region)
        for position, arrays in states.items():
            if not all(is_finite(array) for array in arrays):
                not_finite.append(f"the K/V of position {position} is not finite")
        return Recording(logits, states, tuple(not_finite))

    def not_finite_slot(self) -> str:
        """The first slot of any pool that holds a value which is not finite; empty where none does."""
        for pool, first, count in self._all_slots():
            for array in self.verifier.export_slots(pool, first, count):
                if not is_finite(array):
                    slot = first + int((~np.isfinite(array)).any(axis=(0, 1, 3)).argmax())
                    return (
                        f"slot {slot} of pool {self.shape.pools[pool].name} holds a value that is not finite"
                    )
        return ""

    def litter(self, scene: Scene, rng: np.random.Generator, region: int = 0) -> None:
        """Fill every slot that no row of the scene's past left, or that is out of sight, with loud K/V.

        Each value is a real one of the same state, taken from a random place, with a random sign and
        up to twice as large: louder than anything a rejected draft or a finished sequence leaves, but
        not so loud that its masked score would overflow fp16, which nothing in use can.
        """
        for pool in self._pools:
            size = self.shape.pools[pool].region_slots
            base = self._slot(pool, region, 0)
            real = self.verifier.export_slots(pool, base, min(max(scene.start, 1), size, SLOTS_OF_NOISE))
            noise = [_louder(values, rng) for values in real]
            kept = [slot for span in self._past_in_sight(pool, scene, region) for slot in span]
            for number, first, count in self._all_slots():
                if number != pool:
                    continue
                stale = np.setdiff1d(np.arange(first, first + count), kept)
                values = [np.array(old) for old in self.verifier.export_slots(pool, first, count)]
                for value, tile in zip(values, noise, strict=True):
                    value[:, :, stale - first] = tile[:, :, stale % SLOTS_OF_NOISE]
                self.verifier.import_slots(pool, first, values)

    def _slot(self, pool: int, region: int, position: int) -> int:
        return self.map.spans(pool, region, range(position, position + 1))[0].start

    def _past_in_sight(self, pool: int, scene: Scene, region: int) -> tuple[range, ...]:
        """The slots of the past that the scene's first row attends to."""
        visible = range(self.map.first_visible(pool, scene.start), scene.start)
        return self.map.spans(pool, region, visible)

    def _touchable(self, pool: int, scene: Scene, region: int) -> tuple[range, ...]:
        """The slots that rows of the scene, or drafts past its end, may write."""
        size = self.shape.pools[pool].region_slots
        end = min(scene.positions.stop + self.shape.block, self.shape.context)
        if end - scene.start >= size:
            return self.map.spans(pool, region, range(size))
        return self.map.spans(pool, region, range(scene.start, end))

    def _home_states(self, positions: range, region: int) -> dict[int, tuple[NDArray[np.float16], ...]]:
        """The K/V of those positions whose home slots are still theirs in every pool."""
        reach = min(
            self.shape.context
            if pool.region_slots >= self.shape.context
            else pool.region_slots - self.shape.block + 1
            for pool in self.shape.pools
        )
        kept = range(max(positions.start, positions.stop - reach), positions.stop)
        arrays: list[NDArray[np.float16]] = []
        for pool in self._pools:
            spans = self.map.spans(pool, region, kept)
            pieces = [self.verifier.export_slots(pool, span.start, len(span)) for span in spans]
            arrays += [np.concatenate(parts, axis=2) for parts in zip(*pieces, strict=True)]
        return {position: tuple(a[:, :, i] for a in arrays) for i, position in enumerate(kept)}

    def _all_slots(self) -> Iterator[tuple[int, int, int]]:
        """Every slot as (pool, first, count), at most SLOTS_AT_ONCE at a time."""
        for pool in self._pools:
            slots = self.shape.pools[pool].region_slots * self.shape.sequences
            for first in range(0, slots, SLOTS_AT_ONCE):
                yield pool, first, min(SLOTS_AT_ONCE, slots - first)


@dataclass(frozen=True)
class _Excerpt:
    """The K/V of some slots of one pool, as `export_slots` gave it."""

    pool: int
    first: int
    values: Sequence[NDArray[np.float16]]


def compare(expected: Recording, found: Recording, name: str) -> Difference:
    """Compare every position that both recordings hold, bit by bit; what is not finite is unequal."""
    total = Difference()
    for position, states in expected.states.items():
        total += _compare_states(states, found.states.get(position), position, name)
    for position, logits in expected.logits.items():
        other = found.logits.get(position)
        if other is not None:
            total += _compare_logits(logits, other, position, name)
    for problem in (*expected.not_finite, *found.not_finite):
        total += Difference(1, 1, 0.0, f"{name}: {problem}")
    return total


def is_finite(values: NDArray[np.float16]) -> bool:
    """Whether no fp16 value is infinite or not a number; reads the exponent bits, which is quick."""
    return not bool(((_bits(values) & 0x7C00) == 0x7C00).any())


def same_bits(a: NDArray[np.float16], b: NDArray[np.float16]) -> bool:
    """Whether two fp16 arrays agree in every bit, the sign of zero included."""
    return bool(np.array_equal(_bits(a), _bits(b)))


def _louder(real: NDArray[np.float16], rng: np.random.Generator) -> NDArray[np.float16]:
    """Values of `real` [1, n_kv, n, head_dim] shuffled and scaled, for SLOTS_OF_NOISE slots."""
    shape = (1, real.shape[1], SLOTS_OF_NOISE, real.shape[3])
    noise = rng.choice(real.ravel(), size=shape).astype(np.float32) * rng.uniform(-2, 2, size=shape)
    noise = np.clip(noise, -FP16_MAX, FP16_MAX)
    return np.where(noise == 0, 1.0, noise).astype(np.float16)


def _bits(values: NDArray[np.float16]) -> NDArray[np.uint16]:
    return np.ascontiguousarray(values, dtype=np.float16).view(np.uint16)


def _compare_logits(a: Logits, b: Logits, position: int, name: str) -> Difference:
    if same_bits(a, b):
        return Difference(cases=1)
    gap = np.abs(np.nan_to_num(a.astype(np.float32)) - np.nan_to_num(b.astype(np.float32)))
    differing = int((_bits(a) != _bits(b)).sum())
    largest = float(gap.max())
    what = f"{name}: {differing} of {a.size} logits at position {position} differ, by up to {largest:.4g}"
    return Difference(1, 1, largest, what)


def _compare_states(
    a: tuple[NDArray[np.float16], ...],
    b: tuple[NDArray[np.float16], ...] | None,
    position: int,
    name: str,
) -> Difference:
    if b is None:
        return Difference()
    if all(same_bits(x, y) for x, y in zip(a, b, strict=True)):
        return Difference(cases=1)
    return Difference(1, 1, 0.0, f"{name}: the K/V bits at position {position} differ")
