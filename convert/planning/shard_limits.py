"""List the evidence on shard sizes for each target: ranges with their grade, source and outlook.

Grades: A documented by Apple, B measured by one or two projects, C an anecdote. This project measured nothing
on a Neural Engine, so a range is a prediction and no proof; only a compute plan shows where a shard runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from anespec.manifests.schema import Target

HEAD_CHANNELS = 16384
"""The most output channels of a convolution that every Neural Engine measured so far accepts.

This is the limit of M1 and M2 Pro. An M4 Max ran convolutions of 25,008, 50,016 and 66,688 channels in the
same 5.1 ms (B: ane-book 048, 073), and chips from A16 on accept 65,536 (B: ANEForge#183).
"""
HEAD_EVIDENCE = "B: ANEForge#152, #183"

PROCESS_BYTES = 3_000_000_000
"""About the most bytes of weights that one process can hold on the Neural Engine.

The functions of a package share one weight file, but one project saw a copy for each function in the Neural
Engine's memory (B: anemll-forge).
"""
FUNCTIONS_EVIDENCE = "B: anemll-forge"
PROCESS_EVIDENCE = "B: ane-book Exp. 26, smpanaro"

STATED_FLOOR_BYTES = 14_000_000
"""The size below which Core ML's planner is reported to prefer the CPU (B: ane-book Exp. 26, 27)."""
LARGEST_UNDISPUTED_BYTES = 1_000_000_000
"""The largest shard size without a known failure, also on iPhones (A / B: coremltools docs, ane-book)."""
LARGEST_RESIDENT_BYTES = 2_015_800_000
"""20 layers of Phi-4-mini, which were resident (B: ane-book 053-055)."""
SMALLEST_TOO_LARGE_BYTES = 2_300_000_000
"""24 layers of Phi-4-mini, which ran wholly on the CPU (B: ane-book 053-055)."""


class Outlook(StrEnum):
    """The expected result of a shard in a size range."""

    GOOD = "good"
    UNSURE = "unsure"
    BAD = "bad"


@dataclass(frozen=True)
class SizeRange:
    """The evidence on shards of at least `at_least` bytes of weights, up to the next range."""

    at_least: int
    outlook: Outlook
    finding: str
    grade: str
    source: str

    def __str__(self) -> str:
        return f"{self.finding} ({self.grade}: {self.source})"


@dataclass(frozen=True)
class ShardLimits:
    """The shard sizes of a target. The planner fills shards up to `planned_bytes`, for the given `reason`.

    `context` is the default number of tokens of a sequence, where the model was trained for as many and their
    states fit the machine's memory. With `shards_are_free` more shards cost no time, and layers may end their
    shard for the sake of the golden gate (`StackSizes.last`).
    """

    planned_bytes: int
    reason: str
    context: int
    ranges: tuple[SizeRange, ...]
    shards_are_free: bool = False

    def range_of(self, weight_bytes: int) -> SizeRange:
        """Return the range to which a shard of this size belongs."""
        return [known for known in self.ranges if known.at_least <= weight_bytes][-1]

    @property
    def smallest(self) -> int:
        """The smallest size that is not too small for this target."""
        return next(known.at_least for known in self.ranges if known.outlook is Outlook.GOOD)


_SMALL = SizeRange(
    0,
    Outlook.BAD,
    "below about 14 MB the system's planner preferred the CPU",
    "B",
    "ane-book Exp. 26, 27",
)

MAC_LIMITS = ShardLimits(
    planned_bytes=LARGEST_UNDISPUTED_BYTES,
    reason="the largest size at which no failure is known: shards of 1 to 1.5 GB failed for some graphs with "
    "error -14, and one of 2015.8 MB was resident for another (A / B: ane-book, coremltools docs)",
    context=2048,
    ranges=(
        _SMALL,
        SizeRange(
            STATED_FLOOR_BYTES,
            Outlook.GOOD,
            "no failure is known at this size, but one journal saw int8 shards of 364 and 398 MB on the GPU, "
            "which shards are not offered here",
            "B",
            "ane-book Exp. 26, 27, 109",
        ),
        SizeRange(
            LARGEST_UNDISPUTED_BYTES + 1,
            Outlook.UNSURE,
            "depends on the graph: up to 2015.8 MB was resident for Phi-4-mini, while shards of 1 to 1.5 GB "
            "failed for others with error -14",
            "A / B",
            "ane-book 053-055, Exp. 26; coremltools docs",
        ),
        SizeRange(
            LARGEST_RESIDENT_BYTES + 1,
            Outlook.UNSURE,
            "never measured: 2015.8 MB was resident and 2.3 GB was not",
            "B",
            "ane-book 053-055",
        ),
        SizeRange(
            SMALLEST_TOO_LARGE_BYTES,
            Outlook.BAD,
            "2.3 GB ran wholly on the CPU",
            "B",
            "ane-book 053-055",
        ),
    ),
)

IPHONE_LIMITS = ShardLimits(
    planned_bytes=LARGEST_UNDISPUTED_BYTES,
    reason="the limit known of iPhones (A / B: coremltools docs, ane-book)",
    # All apps share a phone's memory, and the KV states grow with the context.
    context=1024,
    ranges=(
        _SMALL,
        SizeRange(
            STATED_FLOOR_BYTES,
            Outlook.GOOD,
            "within the 1 GB known of iPhones",
            "A / B",
            "coremltools docs, ane-book",
        ),
        SizeRange(
            LARGEST_UNDISPUTED_BYTES + 1,
            Outlook.BAD,
            "above the 1 GB known of iPhones",
            "A / B",
            "coremltools docs, ane-book",
        ),
    ),
)

CPU_LIMITS = ShardLimits(
    planned_bytes=512_000_000,
    reason="so that processors build shards in parallel, and to limit a conversion's memory and the work "
    "that an interruption loses; any size runs, since the portable backend joins all shards",
    # A pass pays for the slots that are in use, so only memory speaks against a long context.
    context=16384,
    ranges=(SizeRange(0, Outlook.GOOD, "any size runs on a processor", "ours", "the portable backend"),),
    # The portable backend joins all shards.
    shards_are_free=True,
)

SHARD_LIMITS: Mapping[Target, ShardLimits] = MappingProxyType(
    {Target.MAC: MAC_LIMITS, Target.IPHONE: IPHONE_LIMITS, Target.CPU: CPU_LIMITS}
)
