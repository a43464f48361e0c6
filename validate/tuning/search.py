"""Which candidate is best: groups of choices in turn, each tried in every combination, until none improves.

Choices that decide together where a shard runs are tried together: the weights with the form of K/V,
attention with shapes. A candidate costs one measurement of its largest shard, and none is measured twice.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anespec.manifests.errors import AnespecError
from anespec.validate.tuning.candidates import Candidate, Space
from anespec.validate.tuning.workbench import Measured, Probe, Workbench
from anespec.validate.tuning.workload import Workload

STAGES: tuple[tuple[str, ...], ...] = (
    ("weights", "kv_form"),
    ("attention", "shapes"),
    ("shapes", "range_default", "reshape_hint"),
    ("layout",),
    ("block", "prefill_block"),
    ("shard_bytes",),
    ("head_shards",),
)
EVERYTHING_THAT_PLACES = ("weights", "kv_form", "attention", "shapes")
"""Tried in all combinations where no stage finds a single candidate that runs."""

WORTH_A_CHANGE = 0.99
"""Of the best so far: what takes no less is as fast, and the earlier candidate stays."""

LONG_START = 30.0
"""Seconds to load a shard, with its first passes, that are a price at every start."""

WORTH_A_LONG_START = 0.9
"""Of the time of what starts quickly: what starts slowly must take less than this to replace it."""

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
        for candidate in space.around(best.candidate, choices):
            trial = tried(candidate)
            if _is_better(trial, best):
                best = trial
        return best

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


def _is_better(trial: Trial, best: Trial) -> bool:
    """Whether a trial replaces the best so far; what starts slowly must be much faster for it."""
    starts_slowly = trial.measured.load_seconds >= LONG_START
    if starts_slowly == (best.measured.load_seconds >= LONG_START):
        return trial.seconds < best.seconds * WORTH_A_CHANGE
    if starts_slowly:
        return trial.seconds < best.seconds * WORTH_A_LONG_START
    return math.isfinite(trial.seconds) and trial.seconds * WORTH_A_LONG_START <= best.seconds


def _trial(candidate: Candidate, workbench: Workbench, workload: Workload) -> Trial:
    topology = workbench.topology(candidate)
    measured = workbench.measure(Probe(candidate=candidate, layers=max(topology)))
    seconds = math.inf
    if measured.usable:
        times = pass_milliseconds(topology, measured, candidate.block)
        seconds = workload.seconds(candidate.block, candidate.prefill_block or candidate.block, times)
    return Trial(candidate, topology, measured, seconds)
