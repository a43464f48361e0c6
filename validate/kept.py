"""Find recorded verdicts that still hold, so that nothing is measured twice; and why others do not.

A verdict is about files whose hashes are in the manifest. The files are hashed before a verdict is reused, so
a reused verdict is about the present files. All functions raise ArtifactError otherwise.
"""

from anespec.manifests.residency import PlanSource, ResidencyFile, ResidencyVerdict
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact, find_damage
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, RunEnvironment, VerdictT
from anespec.system.coreml_errors import may_pass
from anespec.system.formatting import counted, listed
from anespec.validate.exactness.effort import Form
from anespec.validate.golden.figures import THRESHOLDS, GoldenFile, GoldenVerdict
from anespec.validate.quality.verdict import QualityFile, QualityTask, QualityVerdict
from anespec.validate.residency.compute_plan import PlanMaker
from anespec.validate.residency.prediction import rule_circumstances


def kept_residency(artifact: Artifact, coreml: PlanMaker | None) -> ResidencyVerdict | None:
    """Core ML's plan of this artifact where Core ML can be asked, else the prediction by today's rules.

    A plan in which a shard was refused for what may be better at another time is asked for again.
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
    """The golden verdict of here on all stimuli, judged by today's thresholds."""
    verdict = recorded_golden(artifact, here)
    return None if verdict is None else _intact(artifact, verdict)


def recorded_golden(artifact: Artifact, here: RunEnvironment) -> GoldenVerdict | None:
    """The same of the files as they were then."""
    verdict = artifact.read_verdicts(GoldenFile).find(here.with_all_sequences())
    if verdict is None or not verdict.complete or verdict.thresholds != dict(THRESHOLDS):
        return None
    return verdict


def kept_exactness(artifact: Artifact, here: RunEnvironment, form: Form) -> ExactnessVerdict | None:
    """The exactness verdict of here on all invariances, in this form or the full one, which saw more."""
    verdict = artifact.read_verdicts(ExactnessFile).find(here)
    if verdict is None or not verdict.complete:
        return None
    return _intact(artifact, verdict) if verdict.form in (form, "full") else None


def kept_quality(
    artifact: Artifact, here: RunEnvironment, task: QualityTask, text_sha256: str
) -> QualityVerdict | None:
    """The figures of here on the same text and as many tokens, judged by the limits that are asked for."""
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
    """Why no verdict holds here, by the recorded one whose circumstances are nearest."""
    verdicts = artifact.read_verdicts(ExactnessFile).verdicts
    found = [[*_differences(v.circumstances, here), *_lacks(v)] for v in verdicts]
    nearest = min(found, key=len, default=None)
    if nearest is None:
        return "this model was never checked on this machine"
    return f"this model was checked {listed(nearest)}"


def _lacks(verdict: ExactnessVerdict) -> list[str]:
    """In words, what an older version of anespec did not look at."""
    return [f"without {listed(list(verdict.unmeasured), 'or')}"] if verdict.unmeasured else []


def _sequences(of: RunEnvironment) -> str:
    """How many run at a time."""
    return "all sequences" if of.sequences is None else counted(of.sequences, "sequence")


def _differences(there: RunEnvironment, here: RunEnvironment) -> list[str]:
    """In words, what was other than it is here."""
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
    return differences
