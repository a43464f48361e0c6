"""Find recorded verdicts that still hold, and say why others do not.

A verdict holds for files with the hashes in the manifest. The files are hashed again before a verdict is
reused; if they have changed, all these functions raise ArtifactError.
"""

from anespec.manifests.residency import PlanSource, ResidencyFile, ResidencyVerdict
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact, find_damage
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, RunEnvironment, VerdictT
from anespec.runtime.backends import BACKENDS
from anespec.system.coreml_errors import may_pass
from anespec.system.formatting import counted, listed
from anespec.validate.exactness.effort import Form
from anespec.validate.golden.figures import SLACK, GoldenFile, GoldenVerdict
from anespec.validate.quality.verdict import QualityFile, QualityTask, QualityVerdict
from anespec.validate.residency.compute_plan import PlanMaker
from anespec.validate.residency.prediction import rule_circumstances


def kept_residency(artifact: Artifact, coreml: PlanMaker | None) -> ResidencyVerdict | None:
    """Return Core ML's plan of this artifact where Core ML is available, else the rules' prediction.

    A recorded plan is not reused if it refused a shard for a reason that may pass.
    """
    file = artifact.read_verdicts(ResidencyFile)
    if coreml is not None and artifact.manifest.target is Target.MAC:
        verdict, source = file.find(coreml.circumstances(artifact)), PlanSource.MEASURED
        if verdict is not None and any(may_pass(s.refusal) for s in verdict.shards if s.refusal):
            return None
    else:
        verdict, source = file.find(rule_circumstances(artifact.fingerprint)), PlanSource.PREDICTED
    return _intact(artifact, verdict) if verdict is not None and verdict.source is source else None


def kept_golden(artifact: Artifact, here: RunEnvironment) -> GoldenVerdict | None:
    """Return the golden verdict of this environment on all stimuli, judged by the current limits."""
    verdict = recorded_golden(artifact, here)
    return None if verdict is None else _intact(artifact, verdict)


def recorded_golden(artifact: Artifact, here: RunEnvironment) -> GoldenVerdict | None:
    """Return the same verdict as `kept_golden` without checking the artifact's files."""
    verdict = artifact.read_verdicts(GoldenFile).find(here.with_all_sequences())
    slack = SLACK[BACKENDS[here.backend].arithmetic]
    if verdict is None or not verdict.complete or verdict.slack != slack:
        return None
    return verdict


def kept_exactness(artifact: Artifact, here: RunEnvironment, form: Form) -> ExactnessVerdict | None:
    """Return the exactness verdict of this environment on all invariances, in this form or the full one."""
    verdict = artifact.read_verdicts(ExactnessFile).find(here)
    if verdict is None or not verdict.complete:
        return None
    return _intact(artifact, verdict) if verdict.form in (form, "full") else None


def kept_quality(
    artifact: Artifact, here: RunEnvironment, task: QualityTask, text_sha256: str
) -> QualityVerdict | None:
    """Return the figures of this environment on the same text and number of tokens.

    The verdict judges them by the limits of `task`.
    """
    verdict = artifact.read_verdicts(QualityFile).find(here)
    if verdict is None or (verdict.text.sha256, verdict.text.asked) != (text_sha256, task.most_tokens):
        return None
    limits = {"max_kl": task.max_kl, "max_perplexity_change": task.max_perplexity_change}
    return _intact(artifact, verdict).model_copy(update=limits)


def _intact(artifact: Artifact, verdict: VerdictT) -> VerdictT:
    for damage in find_damage(artifact):
        raise damage.error
    return verdict


def why_exactness_is_unknown(artifact: Artifact, here: RunEnvironment) -> str:
    """Return why no exactness verdict holds here, compared with the most similar recorded one."""
    verdicts = artifact.read_verdicts(ExactnessFile).verdicts
    found = [[*_differences(v.circumstances, here), *_lacks(v)] for v in verdicts]
    nearest = min(found, key=len, default=None)
    if nearest is None:
        return "this model was never checked on this machine"
    return f"this model was checked {listed(nearest)}"


def _lacks(verdict: ExactnessVerdict) -> list[str]:
    """Return, in words, the invariances that an older version of anespec did not measure."""
    return [f"without {listed(list(verdict.unmeasured), 'or')}"] if verdict.unmeasured else []


def _sequences(of: RunEnvironment) -> str:
    """Return, in words, how many sequences run at a time."""
    return "all sequences" if of.sequences is None else counted(of.sequences, "sequence")


def _differences(there: RunEnvironment, here: RunEnvironment) -> list[str]:
    """Return, in words, how the environment of a verdict differs from this one."""
    if there.backend != here.backend:
        return [f"on {there.backend}, not on {here.backend}"]
    differences = []
    if there.artifact != here.artifact:
        differences.append("before the artifact changed")
    if there.machine != here.machine:
        differences.append(f"on another machine ({there.machine})")
    if there.library_version != here.library_version:
        versions = f"{there.library_version}, not {here.library_version}"
        differences.append(f"with {here.backend} {versions}")
    if there.executor != here.executor:
        differences.append("by another version of anespec")
    if there.sequences != here.sequences:
        differences.append(f"for {_sequences(there)} at a time, not {_sequences(here)}")
    if there.threads != here.threads:
        differences.append(f"with {counted(there.threads, 'thread')}, not {here.threads}")
    if there.folded_by != here.folded_by:
        differences.append(f"with states folded by {there.folded_by}, not by {here.folded_by}")
    return differences
