"""Define which weight formats the artifacts for a target may have.

Grades as in `convert/planning/shard_limits.py`. A Neural Engine accepts weights with one scale per output
channel, which is never negative, and without an offset; weights with a palette per group of output channels;
and plain fp16. A test checks that every format allowed here is one of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import RequestError
from anespec.system.grades import Grade


@dataclass(frozen=True)
class Unfit:
    """Why a format is unfit for a device, with the grade and source, and the formats to use instead."""

    reason: str
    grade: Grade
    source: str
    instead: tuple[WeightFormat, ...]


INT8_PER_BLOCK = Unfit(
    "with a scale per block of int8 weights its results were wrong (cosine 0.367, where the GPU's was "
    "0.999), and Core ML's profiler says that it supports one per output channel or tensor only",
    Grade.B,
    "coremltools#2510; coreai-models#279 and coreai-torch#93, which are about Core AI",
    (WeightFormat.INT8_CHANNEL, WeightFormat.LUT8),
)
INT4_PER_BLOCK = Unfit(
    "convs of int4 weights with a scale per block fall to the CPU",
    Grade.B,
    "CoreML-LLM, INT4_SHARD_ANE_BUG; ane-book ch. 3",
    (WeightFormat.LUT6, WeightFormat.LUT4, WeightFormat.INT8_CHANNEL),
)

_NEURAL_ENGINE: Mapping[WeightFormat, Unfit] = MappingProxyType(
    {WeightFormat.INT8_BLOCK32: INT8_PER_BLOCK, WeightFormat.INT4_BLOCK32: INT4_PER_BLOCK}
)

UNFIT: Mapping[Target, Mapping[WeightFormat, Unfit]] = MappingProxyType(
    {Target.MAC: _NEURAL_ENGINE, Target.IPHONE: _NEURAL_ENGINE, Target.CPU: MappingProxyType({})}
)
"""The formats that each target refuses. Processors accept every format, and so do GPUs."""


def fits(weight_format: WeightFormat, target: Target) -> bool:
    """Return whether artifacts for `target` may have weights in this format."""
    return weight_format not in UNFIT[target]


def require_fit(weights: WeightChoice, target: Target) -> None:
    """Check that `target` accepts every format in `weights`.

    Raises:
        RequestError: it does not accept one; the message says why, and what to choose instead.
    """
    for kind, chosen in (("", weights.default), *weights.named):
        unfit = UNFIT[target].get(chosen)
        if unfit is not None:
            others = " or ".join(
                f"--weights {kind}={other.value}" if kind else f"--weights {other.value}"
                for other in unfit.instead
            )
            raise RequestError(
                f"{f'{kind}={chosen.value}' if kind else chosen.value} is not for --target {target.value}, "
                f"whose Neural Engine does not accept it: {unfit.reason} "
                f"({unfit.grade}: {unfit.source}); choose {others}, or --target cpu"
            )
