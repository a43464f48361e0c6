"""Which candidate is best: groups of choices in turn, each tried in every combination, until none improves.

Choices that decide together where a shard runs are tried together: the weights with the form of K/V,
attention with shapes. A candidate costs one measurement of its largest shard, and none is measured twice.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from anespec.system.errors import AnespecError
from anespec.validate.tuning.candidates import Candidate, Space
from anespec.validate.tuning.ranking import FASTER, Cost, best_of
from anespec.validate.tuning.workbench import Measured, Probe, Workbench, Workload

STAGES: tuple[tuple[str, ...], ...] = (
    ("weights", "kv_form"),
    ("attention", "shapes"),
    ("shapes", "range_default", "reshape_hint"),
    ("layout",),
    ("block", "prefill_block"),
    ("shard_bytes",),
    ("head_shards",),
    ("head_outputs",),
)
EVERYTHING_THAT_PLACES = ("weights", "kv_form", "attention", "shapes")
"""Tried in all combinations where no stage finds a single candidate that runs."""

MOST_ROUNDS = 4


@dataclass(frozen=True)
class Trial:
    """A candidate, what was measured of it, and the seconds of the workload, infinite for an unusable one."""

    candidate: Candidate
    topology: tuple[int, ...]
    measured: Measured
    seconds: float

    @property
    def milliseconds(self) -> dict[int, float]:
        """A pass of the whole model, by rows; the head runs on as many rows as a block has."""
        return pass_milliseconds(self.topology, self.measured, self.candidate.block)

    @property
    def cost(self) -> Cost:
        """What it is ranked by."""
        return Cost(self.seconds, self.measured.load_seconds)


@dataclass(frozen=True)
class Found:
    """The best candidate, and everything that was tried on the way, in order."""

    best: Trial
    trials: tuple[Trial, ...]


def pass_milliseconds(topology: Sequence[int], measured: Measured, block: int) -> dict[int, float]:
    """A pass over the whole model by rows: a shard takes its share of what the largest one took.

    A prompt's pass wants logits of its last row alone, so its head runs on a block.
    """
    shares = sum(layers / measured.probe.layers for layers in topology)
    heads = {time.rows: time.head for time in measured.times}
    return {time.rows: shares * time.layers + heads[block] for time in measured.times}


def search(
    space: Space,
    workbench: Workbench,
    workload: Workload,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> Found:
    """Find the candidate whose workload takes the least time.

    Raises:
        AnespecError: no candidate runs and passes its gates.
    """
    known: dict[Candidate, Trial] = {}

    def tried(candidate: Candidate) -> Trial:
        if candidate not in known:
            known[candidate] = _trial(candidate, workbench, workload)
            on_trial(known[candidate])
        return known[candidate]

    def improved(best: Trial, choices: Iterable[str]) -> Trial:
        others = map(tried, space.around(best.candidate, choices))
        return best_of(chain((best,), others), lambda trial: trial.cost, FASTER)

    best = tried(space.start)
    for _ in range(MOST_ROUNDS):
        before = best
        for stage in STAGES:
            best = improved(best, stage)
        if math.isinf(best.seconds):
            best = improved(best, EVERYTHING_THAT_PLACES)
        if best is before:
            break
    if math.isinf(best.seconds):
        ruled_out = all(trial.measured.objections for trial in known.values())
        mend = "; --ignore-rules measures what the rules fail, --target cpu is for processors" * ruled_out
        raise AnespecError(
            f"none of {len(known)} ways to convert this model runs here and passes its gates; the first: "
            f"{best.measured.why_not}{mend}"
        )
    return Found(best, tuple(known.values()))


def _trial(candidate: Candidate, workbench: Workbench, workload: Workload) -> Trial:
    topology = workbench.topology(candidate)
    measured = workbench.measure(Probe(candidate=candidate, layers=max(topology)))
    seconds = math.inf
    if measured.usable:
        times = pass_milliseconds(topology, measured, candidate.block)
        seconds = workload.seconds(candidate.block, candidate.prefill_block or candidate.block, times)
    return Trial(candidate, topology, measured, seconds)
