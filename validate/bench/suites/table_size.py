"""Find the smallest table of n-grams that drafts as well as a whole one, by replaying known texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from anespec.runtime.drafters.mod import ModSettings, ModSource
from anespec.validate.bench.measure import Way
from anespec.validate.bench.replay import Replay, WholeBlocks
from anespec.validate.bench.traces import ReplayRequest

SMALLEST = 1 << 10
"""The entries of the smallest table that is tried, the fewest that an option may ask for."""


@dataclass(frozen=True)
class TableSize:
    """The fewest entries, a power of two, with which a way needs no more passes than with `whole` entries."""

    way: Way
    entries: int
    whole: int
    passes: int


def smallest_table(way: Way, settings: ModSettings, scripts: Sequence[Sequence[ReplayRequest]]) -> TableSize:
    """Return the smallest table that loses nothing of a way on these texts, each with a table of its own."""

    def passes(entries: int) -> int:
        own = replace(settings, entries=entries)
        return sum(_passes(ModSource(own), way.most, script) for script in scripts)

    whole = passes(settings.entries)
    entries = min(SMALLEST, settings.entries)
    while entries < settings.entries and passes(entries) > whole:
        entries = min(2 * entries, settings.entries)
    return TableSize(way, entries, settings.entries, whole)


def _passes(source: ModSource, drafts: int, requests: Iterable[ReplayRequest]) -> int:
    replay = Replay(source, WholeBlocks(drafts + 1))
    for request in requests:
        replay.add(request)
    source.close()
    return replay.result().overall.decode_passes
