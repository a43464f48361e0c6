"""The residency gate over an artifact on disk: find a plan, judge it, record the verdict."""

from pathlib import Path

from anespec.manifests.errors import RequestError
from anespec.manifests.residency import PlanSource, ResidencyFile, ResidencyVerdict
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.validate.progress import StepReport
from anespec.validate.residency.compute_plan import PlanMaker, measure_plan
from anespec.validate.residency.prediction import predict
from anespec.validate.residency.recorded_plan import record_plan, replay_plan
from anespec.validate.residency.shard_view import view_artifact
from anespec.validate.residency.verdict import residency_verdict


def residency_gate(
    artifact: Artifact,
    progress: StepReport,
    coreml: PlanMaker | None = None,
    replay: Path | None = None,
    record: Path | None = None,
) -> ResidencyVerdict:
    """Run the residency gate and record its verdict in gates/residency.json; a failed one does not raise.

    The plan is the one in `replay`, or Core ML's where `coreml` is given and the artifact is for the
    Neural Engine, or else predicted by the rules. Core ML's is also written to `record`, if given.

    Raises:
        RequestError: `replay` is no plan of this artifact, or there is nothing to record.
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
            "of an artifact for --target mac"
        )
    verdict = residency_verdict(plan, prediction.findings)
    artifact.record_verdict(ResidencyFile, verdict)
    return verdict
