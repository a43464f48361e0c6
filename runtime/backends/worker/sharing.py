"""Assign shards to workers: the bytes of weights on the Neural Engine are limited for each process.

About 3 GB, measured by two projects (ane-book Exp. 26, smpanaro; grade B).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from anespec.system.machine import machine_memory

ComputeUnits = Literal["cpuOnly", "cpuAndNeuralEngine"]
"""Where Core ML may run a shard, by its own names."""

Loading = Literal["together", "in-turn"]
"""Whether several workers load their shards at the same time or one after another."""

LEAST_TOGETHER = 16_000_000_000
"""Bytes of a machine's memory from which workers load together: on an iPhone that took 97 s, and 71 s in turn
(CoreML-LLM, grade B)."""

BUDGET = 3_000_000_000
PASS_SECONDS = 600.0


@dataclass(frozen=True)
class WorkerLimits:
    """The limits of workers: bytes of weights in each, seconds of a pass (or another request) and of loading.

    Specialising one shard for the Neural Engine took up to 133 s (ane-book Exp. 26, grade B), at its first
    load or its first pass. `units` are where Core ML may run shards; a `loading` of None follows from the
    machine's memory.
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
    """How workers load on a machine of so many bytes of memory."""
    return "together" if memory >= LEAST_TOGETHER else "in-turn"


def shared_out(sizes: Sequence[int], budget: int) -> tuple[range, ...]:
    """Consecutive stages of these sizes, dealt to as few workers as go within the budget: one range each.

    A stage that alone is larger has a worker for itself; one of no size goes with the stage before it. Stages
    stay in order, so a pass goes through each worker once.
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
