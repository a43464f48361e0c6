"""Plan the passes by which the golden gate measures one shard alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anespec.manifests.schema import Manifest, Shard
from anespec.runtime.backends.verifier import shape_of
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import Row, RowKind, RowSlots
from anespec.runtime.rows import pad_rows
from anespec.validate.golden.figures import Stimulus


@dataclass(frozen=True)
class ShardPass:
    """One pass over a shard: its rows, and for every lane the index of its hidden row.

    `real` is the number of rows that are not pads. With `folds` the rows are the first of a chunk, and the
    states that the chunk before left are folded first.
    """

    rows: tuple[Row, ...]
    sources: tuple[int, ...]
    real: int
    folds: bool = False


@dataclass(frozen=True)
class ShardPasses:
    """The passes of one stimulus; hidden row i is at `positions[i]`.

    `home_slots` has the slots that the passes write, by pool, including those of pads that write. All rows
    are of the sequence in `region`.
    """

    stimulus: Stimulus
    passes: tuple[ShardPass, ...]
    positions: tuple[int, ...]
    region: int
    home_slots: Mapping[str, frozenset[int]]


def plan_passes(manifest: Manifest, stimulus: Stimulus) -> ShardPasses:
    """Return passes of several widths and fillings, so that later ones see what earlier ones wrote.

    Random rows jump to the far end of the last region after two blocks, since slow rope frequencies only show
    over a long distance. Embeddings are at the start of region 0 without a gap. With recurrent layers no
    sequence has a gap; random rows begin shortly before a chunk ends, as a text whose earlier rows are zeros.
    """
    block, shape = manifest.block, shape_of(manifest)
    region_map = SlotMapping.of(shape)
    narrowest, wider = manifest.widths[0], next((w for w in manifest.widths if w > block), block)
    # Few real rows, since the reference computes each of them; pads run in the same function.
    filled = min(wider, 2 * block, max(1, manifest.context - 4 * block))
    cuts = [(block, block), (block, block), (block, 1), (wider, filled)]
    cuts += [(narrowest, narrowest), (block, max(1, block - 1))]
    sizes = [(width, min(real, region_map.longest_run)) for width, real in cuts]
    total, fitting = 0, []
    for width, real in sizes:
        if total + real <= manifest.context:
            fitting.append((width, real))
            total += real
    near = min(2 * block, total) if stimulus == "random" else total
    taps = max((pool.window or 0 for pool in manifest.pools if pool.reads == "taps"), default=0)
    if manifest.context - total < taps:
        near = total  # No sequence has a gap within a convolution's taps.
    positions = (*range(near), *range(manifest.context - total + near, manifest.context))
    if manifest.chunk is not None:
        before_end = max(0, manifest.chunk - block - 1) if stimulus == "random" else 0
        begin = min(before_end, manifest.context - total)
        positions = tuple(range(begin, begin + total))
    region = manifest.sequences - 1 if stimulus == "random" else 0
    if shape.side_by_side or manifest.chunk is not None:
        fitting = _in_runs(fitting, positions, region_map)
    passes, done = [], 0
    homes: dict[str, set[int]] = {pool.name: set() for pool in manifest.pools}
    for width, real in fitting:
        rows = [_row(region_map, positions[: index + 1], region) for index in range(done, done + real)]
        passes.append(
            ShardPass(
                (*rows, *pad_rows(rows, width)),
                (*range(done, done + real), *(done,) * (width - real)),
                real,
                folds=done > 0 and manifest.chunk is not None and positions[done] % manifest.chunk == 0,
            )
        )
        for number, pool in enumerate(manifest.pools):
            written = [row.slots[number].home or 0 for row in rows]
            homes[pool.name].update(range(written[0], written[0] + width) if shape.side_by_side else written)
        done += real
    frozen = {name: frozenset(slots) for name, slots in homes.items()}
    return ShardPasses(stimulus, tuple(passes), positions, region, frozen)


def _in_runs(
    sizes: Sequence[tuple[int, int]], positions: Sequence[int], region_map: SlotMapping
) -> list[tuple[int, int]]:
    """Return the widths of passes and their rows, cut where positions have a gap, or a ring or chunk ends."""
    found, done = [], 0
    for width, real in sizes:
        for gapless in _runs(positions[done : done + real]):
            found += [(width, len(run)) for run in region_map.runs(gapless, real)]
        done += real
    return found


def fitting_passes(passes: ShardPasses, manifest: Manifest, shard: Shard) -> ShardPasses:
    """Return the same rows, a block at a time where no function of the shard takes the whole pass."""
    pieces: list[ShardPass] = []
    for step in passes.passes:
        if manifest.function_of(shard, len(step.rows)) is not None:
            pieces.append(step)
        else:
            pieces += _blocks(step, manifest.block)
    return replace(passes, passes=tuple(pieces))


def _blocks(step: ShardPass, block: int) -> list[ShardPass]:
    """Return a pass's real rows a block at a time, the last block padded."""
    pieces = []
    for start in range(0, step.real, block):
        rows = step.rows[start : min(start + block, step.real)]
        missing = block - len(rows)
        sources = (*step.sources[start : start + len(rows)], *step.sources[start : start + 1] * missing)
        pieces.append(ShardPass((*rows, *pad_rows(rows, block)), sources, len(rows)))
    return pieces


def _row(region_map: SlotMapping, positions: Sequence[int], region: int) -> Row:
    """Return the row at the last of `positions`, which sees all of them that its window reaches."""
    last = positions[-1]
    places = tuple(
        RowSlots(
            own.home,
            tuple(
                span
                for run in _runs(positions)
                for span in region_map.slot_ranges(
                    pool, region, range(max(run.start, region_map.first_visible(pool, last)), run.stop)
                )
                if span
            ),
        )
        for pool, own in enumerate(region_map.slots(region, last))
    )
    return Row(RowKind.PROMPT, 0, last, places)


def _runs(positions: Sequence[int]) -> list[range]:
    """Return ascending positions as runs without a gap."""
    edges = [i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1]
    bounds = zip([0, *edges], [*edges, len(positions)], strict=True)
    return [range(positions[a], positions[b - 1] + 1) for a, b in bounds]
