"""Rules about the size of shards. Only some sizes were measured; between them a rule says so."""

from collections.abc import Iterator

from anespec.convert.planning.shard_limits import (
    LARGEST_RESIDENT_BYTES,
    LARGEST_UNDISPUTED_BYTES,
    PROCESS_BYTES,
    SMALLEST_TOO_LARGE_BYTES,
    STATED_FLOOR_BYTES,
)
from anespec.manifests.residency import Severity
from anespec.validate.residency.rule import Effect, Finding, Grade, Rule, ShardRule
from anespec.validate.residency.shard_view import ArtifactView, ShardView

SMALLEST_RESIDENT_BYTES = 8_900_000
"""One int8 layer of d=1024, ff=2048, 16/4 heads of 64 (8.9 million weights) ran on the Neural Engine. The
same source states a larger floor, which the planner of shards uses."""


def _megabytes(count: int) -> str:
    size = count / 1e6
    return f"{size:.2f} MB" if size < 10 else f"{size:.1f} MB"


class SmallShard(ShardRule):
    id = "small-shard"
    grades = (Grade.B,)
    source = "ane-book Exp. 26, 27, journal 093"
    fact = (
        "The planner prefers the CPU for small shards. Measured: 0.03 MB and a probe of d=64 on the CPU; "
        "d=1024 (S=256, about 9 MB), 19 MB and d=3072 (S=512) on the Neural Engine. The source states a "
        "floor of about 14 MB, above its own probe."
    )
    looks_at = "the bytes of a shard's weights"
    severity = Severity.FAIL
    effect = Effect.SHARD
    mend = (
        "put more layers in a shard (--topology) or more channels in a head (--head-shards); a model that is "
        "smaller than that stays on the CPU"
    )

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        size = _megabytes(shard.weight_bytes)
        if shard.weight_bytes < SMALLEST_RESIDENT_BYTES:
            detail = "the planner prefers the CPU; the smallest measured on the Neural Engine has about 9 MB"
            yield self.found(shard, f"{size} of weights", detail)
        elif shard.weight_bytes < STATED_FLOOR_BYTES:
            detail = "one probe of about 9 MB was resident, but its source states a floor of about 14 MB"
            yield self.found(shard, f"{size} of weights", detail, severity=Severity.WARN)


class LargeShard(ShardRule):
    id = "large-shard"
    grades = (Grade.A, Grade.B)
    source = "ane-book journals 053-055, 109, Exp. 26; coremltools documentation"
    fact = (
        "2015.8 MB (20 layers of Phi-4-mini) were resident, 2.3 GB (24 layers) ran wholly on the CPU; "
        "whole models of 1 to 1.5 GB gave -14 elsewhere, and an iPhone takes 1 GB; one journal saw int8 "
        "shards of 364 and 398 MB on the GPU. It depends on the graph."
    )
    looks_at = "the bytes of a shard's weights"
    severity = Severity.FAIL
    effect = Effect.SHARD
    mend = "put fewer layers in a shard (--topology)"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        subject = f"{_megabytes(shard.weight_bytes)} of weights"
        if shard.weight_bytes >= SMALLEST_TOO_LARGE_BYTES:
            yield self.found(shard, subject, "2.3 GB ran wholly on the CPU")
        elif shard.weight_bytes > LARGEST_RESIDENT_BYTES:
            detail = "nothing was measured between 2015.8 MB, resident, and 2.3 GB, on the CPU"
            yield self.found(shard, subject, detail, severity=Severity.WARN)
        elif shard.weight_bytes > LARGEST_UNDISPUTED_BYTES:
            detail = "resident for one model, error -14 for others; more than an iPhone takes"
            yield self.found(shard, subject, detail, severity=Severity.WARN)


class Multifunction(ShardRule):
    id = "multifunction"
    grades = (Grade.B,)
    source = "anemll-forge; FluidAudio#679, ANEMLL"
    fact = (
        "The functions of a package share one weight file, and were seen to share one state correctly. "
        "One project saw the Neural Engine's memory hold the weights once for each function."
    )
    looks_at = "the functions of a package"
    severity = Severity.WARN
    mend = "if memory is short, convert with --shapes static or range"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        if len(shard.functions) > 1:
            names = ", ".join(function.name for function in shard.functions)
            detail = f"weights may be held {len(shard.functions)} times"
            yield self.found(shard, f"functions {names}", detail)


class ProcessWeights(Rule):
    id = "process-weights"
    grades = (Grade.B,)
    source = "ane-book Exp. 26; smpanaro"
    fact = "A process can hold about 3 GB of weights on the Neural Engine."
    looks_at = "the weights of all shards together"
    severity = Severity.WARN
    mend = "distribute the shards over worker processes, or choose smaller weights (--weights)"

    def check(self, artifact: ArtifactView) -> Iterator[Finding]:
        """Yield one finding about all shards together."""
        total = sum(shard.weight_bytes for shard in artifact.shards)
        if total > PROCESS_BYTES:
            detail = "more than the about 3 GB that one process can hold"
            yield Finding(None, f"{_megabytes(total)} of weights", detail, self.severity, Effect.NOTHING)
