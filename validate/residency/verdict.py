"""The verdict on a plan, however it came about."""

from collections.abc import Iterable

from anespec.manifests.errors import ResidencyGateError
from anespec.manifests.residency import (
    Placement,
    Plan,
    PlanSource,
    ResidencyVerdict,
    RuleFinding,
    ShardResidency,
)


def residency_verdict(plan: Plan, findings: Iterable[RuleFinding]) -> ResidencyVerdict:
    """Count a plan, and keep what the rules found beside it."""
    return ResidencyVerdict(
        circumstances=plan.circumstances,
        source=plan.source,
        block=plan.block,
        shards=tuple(ShardResidency.of(shard) for shard in plan.shards),
        findings=tuple(findings),
    )


def decides(verdict: ResidencyVerdict, prediction_decides: bool) -> bool:
    """Whether a failing verdict fails the run: a plan's does, a prediction's only where that is asked for."""
    return prediction_decides or verdict.source is not PlanSource.PREDICTED


def require_residency(verdict: ResidencyVerdict) -> None:
    """Do nothing where the verdict passed.

    Raises:
        ResidencyGateError: naming the first shard that is not on the Neural Engine, and why.
    """
    if verdict.passed:
        return
    if not verdict.shards:
        raise ResidencyGateError("the residency gate fails: the plan has no shards")
    first = verdict.off_ane[0]
    raise ResidencyGateError(
        f"the residency gate fails ({verdict.source}): {len(verdict.off_ane)} of {len(verdict.shards)} "
        f"shards are not on the Neural Engine; first {first.shard}: {_reason(first)}; `anespec validate` "
        "lists the mends"
    )


def _reason(shard: ShardResidency) -> str:
    if shard.refusal is not None:
        return shard.refusal
    if shard.placement is Placement.EMPTY:
        return "the plan has no operations"
    rules = f" ({', '.join(shard.off_ane[0].rules)})" if shard.off_ane[0].rules else ""
    return f"{shard.compute.off_ane} of {shard.compute.total} operations, such as {shard.off_ane[0]}{rules}"
