"""Choose the number of processes for a conversion by its work, the processors and the free memory."""

import sys
from collections.abc import Mapping
from types import MappingProxyType

from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import shard_units
from anespec.convert.weights.encoding import Encoding
from anespec.convert.weights.formats import REPACKED
from anespec.manifests.schema import WeightFormat
from anespec.system.machine import free_memory, processors

SECONDS_PER_GIGAWEIGHT: Mapping[WeightFormat, float] = MappingProxyType(
    {
        WeightFormat.FP16: 8.0,
        WeightFormat.INT8_BLOCK32: 13.0,
        WeightFormat.LUT8: 36.0,
        WeightFormat.INT8_CHANNEL: 5.5,
        WeightFormat.LUT6: 33.0,
        WeightFormat.INT4_BLOCK32: 19.0,
        WeightFormat.LUT4: 31.0,
    }
)
"""Seconds in which a processor stores 10^9 weights: `benchmarks/weight_formats.py` (AVX-512, numpy 2)."""

REPACKED_SECONDS_PER_GIGAWEIGHT = 5.0
"""The upper limit of these seconds if the GGUF's own integers are repacked."""

MIN_WORKER_SECONDS = 2.0
"""The least seconds of work for a worker; for less work, starting it takes longer than it saves.

The imports take 3 s in any case. Threads of one process save little: pieces are small, and much of their work
holds the GIL.
"""

IMPORTS_MEMORY = 300_000_000
"""Bytes of the imports of a worker, and of the process that starts workers; forked workers share them."""

WORKER_MEMORY = 100_000_000
"""Bytes of a worker besides its imports and the projection that it reads."""

LARGEST_SHARE = 1.5
"""The limit of all workers' memory, as a multiple of the largest shard (docs/DESIGN.md, section 9)."""

USUAL_SHARD = 1_000_000_000
"""Bytes of a large model's shard. With smaller shards, workers may use as much memory as with this one."""


def suitable_workers(plan: ConversionPlan) -> int:
    """Return the number of processes that is best for a plan on this machine, with its free memory."""
    units = shard_units(plan)
    largest = max(USUAL_SHARD, *(unit.weight_bytes(plan) for unit in units))
    room = min(free_memory(), int(LARGEST_SHARE * largest))
    # A worker maps the source of one projection at a time, and holds one piece of the result.
    own = WORKER_MEMORY + plan.largest_matrix_bytes()
    share = (room - IMPORTS_MEMORY) // (own if sys.platform == "linux" else IMPORTS_MEMORY + own)
    return max(1, min(processors(), len(units), share, int(storing_seconds(plan) / MIN_WORKER_SECONDS)))


def storing_seconds(plan: ConversionPlan) -> float:
    """Return the approximate seconds in which one processor stores all weights of a plan."""
    return sum(_cost(encoding) * rows * columns for encoding, (rows, columns) in plan.encodings()) / 1e9


def _cost(encoding: Encoding) -> float:
    weight_format = encoding.weight_format
    repacked = encoding in REPACKED.values()
    return REPACKED_SECONDS_PER_GIGAWEIGHT if repacked else SECONDS_PER_GIGAWEIGHT[weight_format]
