"""The residency gate over an artifact on disk: find a plan, judge it, record the verdict."""

from collections.abc import Iterable
from pathlib import Path

from anespec.manifests.residency import (
    Placement,
    Plan,
    PlanSource,
    ResidencyFile,
    ResidencyVerdict,
    RuleFinding,
    ShardResidency,
)
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.system.errors import RequestError, ResidencyGateError
from anespec.system.progress import StepReport
from anespec.validate.residency.compute_plan import PlanMaker, measure_plan
from anespec.validate.residency.prediction import predict
from anespec.validate.residency.recorded_plan import record_plan, replay_plan
from anespec.validate.residency.shard_view import view_artifact


def residency_verdict(plan: Plan, findings: Iterable[RuleFinding]) -> ResidencyVerdict:
    """Return the counts of a plan with the findings of the rules."""
    return ResidencyVerdict(
        circumstances=plan.circumstances,
        source=plan.source,
        block=plan.block,
        shards=tuple(ShardResidency.of(shard) for shard in plan.shards),
        findings=tuple(findings),
    )


def decides(verdict: ResidencyVerdict, prediction_decides: bool) -> bool:
    """Return whether a failed verdict fails the run: a plan's does, a prediction's only if requested."""
    return prediction_decides or verdict.source is not PlanSource.PREDICTED


def require_residency(verdict: ResidencyVerdict) -> None:
    """Require that the verdict passed.

    Raises:
        ResidencyGateError: a shard is not on the Neural Engine; the message names the first, and why.
    """
    if verdict.passed:
        return
    if not verdict.shards:
        raise ResidencyGateError("the residency gate fails: the plan has no shards")
    first = verdict.off_ane[0]
    raise ResidencyGateError(
        f"the residency gate fails ({verdict.source}): {len(verdict.off_ane)} of {len(verdict.shards)} "
        f"shards are not on the Neural Engine; first {first.shard}: {_reason(first)}; `anespec validate` "
        "lists the fixes"
    )


def _reason(shard: ShardResidency) -> str:
    if shard.refusal is not None:
        return shard.refusal
    if shard.placement is Placement.EMPTY:
        return "the plan has no operations"
    rules = f" ({', '.join(shard.off_ane[0].rules)})" if shard.off_ane[0].rules else ""
    return f"{shard.compute.off_ane} of {shard.compute.total} operations, such as {shard.off_ane[0]}{rules}"


def residency_gate(
    artifact: Artifact,
    progress: StepReport,
    coreml: PlanMaker | None = None,
    replay: Path | None = None,
    record: Path | None = None,
) -> ResidencyVerdict:
    """Run the residency gate and record its verdict in gates/residency.json; a failed verdict does not raise.

    The plan is the one in `replay`; or Core ML's, if `coreml` is given and the artifact is for the Neural
    Engine; or else the rules' prediction. Core ML's plan is also written to `record`, if given.

    Raises:
        RequestError: `replay` is not a plan of this artifact, or there is no plan to record.
        ArtifactError: a shard is missing or damaged.
        StorageError: the verdict or the plan cannot be written.
    """
    manifest = artifact.manifest
    progress("checking the rules")
    prediction = predict(view_artifact(artifact), artifact.fingerprint, manifest.block)
    plan = prediction.plan
    if replay is not None:
        plan = replay_plan(replay, artifact)
    elif coreml is not None and manifest.target is Target.MAC:
        plan = measure_plan(artifact, coreml, progress)
        if record is not None:
            record_plan(plan, record)
    if record is not None and plan.source is not PlanSource.MEASURED:
        raise RequestError(
            f"there is no plan to record in {record}: only Core ML makes one, on a Mac with a Neural Engine, "
            "for an artifact of --target mac"
        )
    verdict = residency_verdict(plan, prediction.findings)
    artifact.record_verdict(ResidencyFile, verdict)
    return verdict
