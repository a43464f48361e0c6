"""Search the best candidate: vary groups of options in turn, in all combinations, until nothing improves.

Options that together decide where a shard runs are varied together: weights with the form of K/V, attention
with shapes. A candidate costs one measurement of its largest shard, and none is measured twice.
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
    ("chunk", "chunk_solve"),
    ("block", "prefill_block"),
    ("shard_bytes",),
    ("head_shards",),
    ("head_outputs",),
)
PLACEMENT_OPTIONS = ("weights", "kv_form", "attention", "shapes")
"""The options that decide where a shard runs; all combinations are tried if no stage finds a usable one."""

MAX_ROUNDS = 4


@dataclass(frozen=True)
class Trial:
    """A candidate, its measurement, and the seconds of the workload, infinite if it is unusable."""

    candidate: Candidate
    topology: tuple[int, ...]
    measured: Measured
    seconds: float

    @property
    def milliseconds(self) -> dict[int, float]:
        """Return the time of a pass of the whole model by rows; the head runs on a block's rows."""
        return pass_milliseconds(self.topology, self.measured, self.candidate.block)

    @property
    def cost(self) -> Cost:
        """Return the cost by which it is ranked."""
        return Cost(self.seconds, self.measured.load_seconds)


@dataclass(frozen=True)
class Found:
    """The best candidate, and all trials in order."""

    best: Trial
    trials: tuple[Trial, ...]


def pass_milliseconds(topology: Sequence[int], measured: Measured, block: int) -> dict[int, float]:
    """Return the time of a pass of the whole model by rows, in proportion to the largest shard's layers.

    A prompt's pass needs only the logits of its last row, so its head runs on a block.
    """
    shares = _shares(topology, measured)
    heads = {time.rows: time.head for time in measured.times}
    return {time.rows: shares * time.layers + heads[block] for time in measured.times}


def _shares(topology: Sequence[int], measured: Measured) -> float:
    """Return how many times the measured layers the whole model has."""
    return sum(layers / measured.probe.layers for layers in topology)


def search(
    space: Space,
    workbench: Workbench,
    workload: Workload,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> Found:
    """Return the candidate whose workload takes the least time.

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
    for _ in range(MAX_ROUNDS):
        before = best
        for stage in STAGES:
            best = improved(best, stage)
        if math.isinf(best.seconds):
            best = improved(best, PLACEMENT_OPTIONS)
        if best is before:
            break
    if math.isinf(best.seconds):
        ruled_out = all(trial.measured.objections for trial in known.values())
        fix = "; --ignore-rules also measures what the rules fail, --target cpu is for processors" * ruled_out
        raise AnespecError(
            f"none of {len(known)} ways to convert this model runs here and passes its gates; the first: "
            f"{best.measured.why_not}{fix}"
        )
    return Found(best, tuple(known.values()))


def _trial(candidate: Candidate, workbench: Workbench, workload: Workload) -> Trial:
    topology = workbench.topology(candidate)
    measured = workbench.measure(Probe(candidate=candidate, layers=max(topology)))
    seconds = math.inf
    if measured.usable:
        times = pass_milliseconds(topology, measured, candidate.block)
        seconds = workload.seconds(candidate, times, _shares(topology, measured) * measured.fold)
    return Trial(candidate, topology, measured, seconds)
