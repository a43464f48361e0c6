"""Assign shards to workers, since the Neural Engine limits the bytes of weights of one process.

Two projects measured a limit of about 3 GB (ane-book Exp. 26, smpanaro; grade B).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from anespec.system.machine import machine_memory

ComputeUnits = Literal["cpuOnly", "cpuAndNeuralEngine"]
"""The processors on which Core ML may run a shard, by Core ML's names."""

Loading = Literal["together", "in-turn"]
"""Whether several workers load their shards at the same time or one after another."""

TOGETHER_MEMORY = 16_000_000_000
"""Bytes of memory from which a machine's workers load at the same time.

On an iPhone loading together took 97 s, and in turn 71 s (CoreML-LLM, grade B).
"""

BUDGET = 3_000_000_000
PASS_SECONDS = 600.0


@dataclass(frozen=True)
class WorkerLimits:
    """The limits of worker processes, and how they load.

    `budget` is the bytes of weights in one worker. `pass_seconds` is the timeout of a pass and of any other
    request but loading, `load_seconds` that of loading: others saw Core ML take up to 133 s to specialise one
    shard for the Neural Engine, at its first load or its first pass (ane-book Exp. 26, grade B). `units` are
    the processors that Core ML may use. A `loading` of None is chosen by the machine's memory.
    """

    budget: int = BUDGET
    pass_seconds: float = PASS_SECONDS
    load_seconds: float = 3600.0
    units: ComputeUnits = "cpuAndNeuralEngine"
    loading: Loading | None = None

    @property
    def in_turn(self) -> bool:
        """Whether workers load one after another."""
        return (self.loading or usual_loading(machine_memory())) == "in-turn"


def usual_loading(memory: int) -> Loading:
    """Return how workers load by default on a machine with `memory` bytes."""
    return "together" if memory >= TOGETHER_MEMORY else "in-turn"


def shared_out(sizes: Sequence[int], budget: int) -> tuple[range, ...]:
    """Divide consecutive stages of these sizes among as few workers as the budget allows; one range each.

    A stage larger than the budget gets a worker of its own. A stage of size 0 goes to the worker of the stage
    before it. Stages stay in order, so a pass visits each worker once.
    """
    workers: list[range] = []
    held = 0
    for index, size in enumerate(sizes):
        if workers and (not size or held + size <= budget):
            workers[-1] = range(workers[-1].start, index + 1)
            held += size
        else:
            workers.append(range(index, index + 1))
            held = size
    return tuple(workers)
