"""The constants of the cost model, each with its grade and source. None was measured by this project.

The grades are those of manifests.grades; here C also marks a value inferred from a measurement of something
else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from anespec.system.grades import Grade

ANEMLL_BENCH = "anemll-bench Results.MD, llama_lm_head"


@dataclass(frozen=True)
class Constant:
    """A number with its unit, its grade and its source."""

    value: float
    unit: str
    grade: Grade
    source: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit} ({self.grade}: {self.source})"


@dataclass(frozen=True)
class Chip:
    """A chip by the name that `sysctl` gives it, and the memory bandwidth that its Neural Engine reaches."""

    name: str
    bandwidth: Constant


def _chip(name: str, gigabytes_a_second: float, grade: Grade = Grade.B, source: str = ANEMLL_BENCH) -> Chip:
    return Chip(name, Constant(gigabytes_a_second, "GB/s", grade, source))


CHIPS = (
    _chip("Apple M1", 60.87),
    _chip("Apple M1 Pro", 54.90),
    _chip("Apple M1 Max", 54.62),
    _chip("Apple M1 Ultra", 54.72),
    _chip("Apple M2", 60.45),
    _chip("Apple M2 Pro", 61.93),
    _chip("Apple M2 Max", 62.01),
    _chip("Apple M2 Ultra", 61.68),
    _chip("Apple M3", 63.10),
    _chip("Apple M3 Max", 120.22),
    _chip("Apple M4", 64.18),
    _chip("Apple M4 Pro", 126.36),
    _chip("Apple M4 Max", 118.88),
    _chip("Apple M5", 70.21),
    _chip("Apple M5 Pro", 148.39, Grade.C, "as M5 Max, since M4 Pro is as M4 Max"),
    _chip("Apple M5 Max", 148.39),
    _chip("Apple M6", 152.01, Grade.C, f"{ANEMLL_BENCH}: one report"),
)
"""The bandwidth of one model that streams 1.05 GB of fp16 weights. M3 Pro, M3 Ultra and iPhones are
missing."""

PALETTE_SHARE = Constant(0.89, "of the bandwidth", Grade.B, "anemll-bench: LUT weights reach 0.82 to 0.96")
"""The share of the bandwidth that palettised weights reach. Other formats are assumed to reach all of it
(C: nobody measured int8)."""

KV_SHARE = Constant(1.0, "of the bandwidth", Grade.C, "keys and values are taken to stream like weights")
"""The share of the bandwidth that keys and values reach. CoreML-LLM's 1.7B model lost more with its slots:
24.1 tokens/s at 1024, 9.4 at 2048."""

DISPATCH = Constant(0.275, "ms", Grade.B, "ane-book 071, CoreML-LLM: 0.15 to 0.4 ms, the middle")
"""The time to start one package; a pass starts each shard once."""

OPERATION = Constant(
    0.001, "ms", Grade.C, "what Phi-4-mini's 58 ms on an M4 Max leave once the others are counted (ane-book)"
)
"""The time of one operation, besides the bytes that it moves."""

SHARED: Mapping[str, Constant] = MappingProxyType(
    {"palettes": PALETTE_SHARE, "kv": KV_SHARE, "dispatch": DISPATCH, "operation": OPERATION}
)
"""The constants that hold for every chip."""
