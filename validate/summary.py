"""Summarise in one sentence what an artifact may do.

It is the last line of `validate` and the first of the page.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from anespec.manifests.residency import PlanSource, ResidencyFile, ResidencyVerdict
from anespec.manifests.schema import Manifest, Target
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    ExactnessFile,
    ExactnessVerdict,
    Invariance,
    RunEnvironment,
    Status,
    Verdict,
    VerdictT,
)
from anespec.runtime.backends.verifier import shape_of
from anespec.system.formatting import counted, listed, printable
from anespec.validate.golden.figures import GoldenFile, GoldenVerdict
from anespec.validate.quality.verdict import QualityFile, QualityVerdict


@dataclass(frozen=True)
class KnownVerdicts:
    """The verdicts of the gates; None where a gate was not run."""

    golden: GoldenVerdict | None = None
    exactness: ExactnessVerdict | None = None
    quality: QualityVerdict | None = None
    residency: ResidencyVerdict | None = None
    residency_required: bool = False

    @classmethod
    def found(cls, verdicts: Iterable[Verdict], residency_required: bool = False) -> "KnownVerdicts":
        """Return what one run found; it has at most one verdict of each gate."""
        all_found = tuple(verdicts)

        def of_kind(kind: type[VerdictT]) -> VerdictT | None:
            return next((verdict for verdict in all_found if isinstance(verdict, kind)), None)

        return cls(
            golden=of_kind(GoldenVerdict),
            exactness=of_kind(ExactnessVerdict),
            quality=of_kind(QualityVerdict),
            residency=of_kind(ResidencyVerdict),
            residency_required=residency_required,
        )

    @classmethod
    def of(cls, artifact: Artifact, circumstances: RunEnvironment) -> "KnownVerdicts":
        """Return the verdicts recorded in this environment.

        For residency it is the best verdict on this artifact from any environment.
        """
        return cls(
            golden=artifact.read_verdicts(GoldenFile).find(circumstances.with_all_sequences()),
            exactness=artifact.read_verdicts(ExactnessFile).find(circumstances),
            quality=artifact.read_verdicts(QualityFile).find(circumstances),
            residency=_best_residency(artifact.read_verdicts(ResidencyFile), circumstances.artifact),
        )


def summary(artifact: Artifact, circumstances: RunEnvironment, found: KnownVerdicts | None = None) -> str:
    """Return one sentence on what the artifact computes, may do and costs in this environment.

    If a run says what it `found`, the other gates are named as not tested now, with their recorded verdicts.
    """
    on_record = KnownVerdicts.of(artifact, circumstances)
    known, earlier = (on_record, KnownVerdicts()) if found is None else (found, on_record)
    return sentence(artifact.root.resolve().name, artifact.manifest, circumstances, known, earlier)


def sentence(
    name: str,
    manifest: Manifest,
    where: RunEnvironment,
    known: KnownVerdicts,
    earlier: KnownVerdicts | None = None,
) -> str:
    """Return the sentence of `summary` for an artifact called `name`, from its verdicts."""
    source = printable(manifest.source.name)
    does = _does(source, known.golden) + _may(manifest, known.exactness)
    untested = _untested(source, manifest, known, earlier or KnownVerdicts())
    parts = [listed(does)] if does else []
    parts += [f"{'it ' if does else ''}was not tested on {listed(untested, 'or')}"] if untested else []
    remarks = [*_cost(known.quality), *_place(manifest, known)]
    parts = [*parts[:1], *remarks, *parts[1:]]
    threads = counted(where.threads, "thread")
    return f"On {printable(where.backend)} with {threads} {printable(name)} {'; '.join(parts)}."


def _does(source: str, golden: GoldenVerdict | None) -> list[str]:
    if golden is None:
        return []
    return [f"computes what {source} means" if golden.passed else f"does not compute what {source} means"]


def _may(manifest: Manifest, exactness: ExactnessVerdict | None) -> list[str]:
    if exactness is None:
        return []
    stands = exactness.standing_of
    allowed: list[str] = []
    denied: list[str] = []
    (allowed if exactness.allows_speculation else denied).extend(["speculate", "reuse prefixes"])
    proven = (manifest.block, *exactness.usable_widths(manifest.block))
    narrowest, widest = min(proven), max(proven)
    refuted = stands(Invariance.WIDTH) is Status.FAIL
    if narrowest < manifest.block:
        allowed.append(f"decode in passes of {counted(narrowest, 'row')} and more")
    elif refuted and manifest.t_min < manifest.block:
        denied.append(f"decode in passes of fewer than {manifest.block} rows")
    if widest > manifest.block:
        allowed.append(f"prefill in passes of up to {widest} rows")
    elif refuted and manifest.t_max > manifest.block:
        denied.append(f"prefill in passes wider than {manifest.block} rows")
    if stands(Invariance.SPAN) is Status.PASS:
        allowed.append("look at the slots in use alone")
    elif stands(Invariance.SPAN) is Status.FAIL:
        proven_some, left_out = _spans(manifest, exactness)
        if proven_some:
            allowed.append(f"look at the slots in use alone, except where that is {left_out} slots")
        else:
            denied.append("look at the slots in use alone")
    if stands(Invariance.REGION) is Status.PASS:
        allowed.append(f"serve {manifest.sequences} sequences at once")
    elif stands(Invariance.REGION) is Status.FAIL:
        denied.append("serve several sequences at once")
    may = f"may {listed(allowed)}" if allowed else ""
    if denied:
        but = f"{may}, but not" if may else "may not"
        may = f"{but} {listed(denied, 'or')}, since {', and '.join(_reasons(exactness))}"
    return [may]


def _spans(manifest: Manifest, exactness: ExactnessVerdict) -> tuple[bool, str]:
    """Return whether spans shorter than a whole pool are proven, and in words those that are not."""
    sequences = exactness.circumstances.sequences
    steps = shape_of(manifest, partial_spans=True, sequences=sequences).spans
    proven = exactness.proven_spans or tuple((usual[-1],) for usual in steps)
    some = any(set(known) & set(usual[:-1]) for known, usual in zip(proven, steps, strict=True))
    left = sorted({span for known, usual in zip(proven, steps, strict=True) for span in {*usual} - {*known}})
    return some, listed([f"{span:,}" for span in left], "or")


def _reasons(exactness: ExactnessVerdict) -> list[str]:
    """Return why something is not allowed: an invariance failed, or a required one was not measured."""
    needed = {
        standing: [i.value for i in REQUIRED_FOR_SPECULATION if exactness.standing_of(i) is standing]
        for standing in (Status.NO_CASES, Status.NOT_RUN)
    }
    failed = [i.value for i in Invariance if exactness.standing_of(i) is Status.FAIL]
    reasons = [f"bits depend on {listed(failed)}"] if failed else []
    if names := needed[Status.NO_CASES]:
        reasons.append(f"there were no cases of {listed(names)}")
    if names := needed[Status.NOT_RUN]:
        reasons.append(f"{listed(names)} {'was' if len(names) == 1 else 'were'} not measured")
    return reasons


def _cost(quality: QualityVerdict | None) -> list[str]:
    if quality is None:
        return []
    text, change = printable(quality.text.name), quality.figures.perplexity_change
    match quality.standing:
        case Status.FAIL:
            return [f"on {text} it fails, for {listed(quality.failures)}"]
        case Status.PASS:
            return [f"on {text} it keeps its limits, with a perplexity changed by {change:+.2f} %"]
        case _:
            return [f"on {text} its perplexity changed by {change:+.2f} %, no limit set"]


def _place(manifest: Manifest, known: KnownVerdicts) -> list[str]:
    """Return where the artifact runs; nothing for an artifact for the CPU, unless residency is required."""
    residency, required = known.residency, known.residency_required
    if residency is None or (manifest.target is Target.CPU and not required):
        return []
    shards = counted(len(residency.shards), "shard")
    on_ane = f"{len(residency.shards) - len(residency.off_ane)} of {shards} on the Neural Engine"
    place = {
        PlanSource.PREDICTED: f"rules predict {on_ane}",
        PlanSource.MEASURED: f"Core ML plans {on_ane}",
        PlanSource.REPLAYED: f"a replayed plan has {on_ane}",
    }[residency.source]
    return [f"{place}, where all are required" if required and not residency.passed else place]


def _untested(source: str, manifest: Manifest, known: KnownVerdicts, earlier: KnownVerdicts) -> list[str]:
    """Return the questions without a verdict, each with the gate's recorded status."""
    residency = known.residency or manifest.target is Target.CPU
    questions = (
        (known.golden, f"whether it computes what {source} means", earlier.golden),
        (known.exactness, "whether it may speculate", earlier.exactness),
        (known.quality, "what rounding costs it on a text", earlier.quality),
        (residency, "where it would run", earlier.residency),
    )
    return [
        question if before is None else f"{question} (on record: {before.standing})"
        for answer, question, before in questions
        if not answer
    ]


def _best_residency(file: ResidencyFile, artifact: str) -> ResidencyVerdict | None:
    """Return a measured plan before a replayed one before a prediction, the newest of several."""
    ranks = (PlanSource.PREDICTED, PlanSource.REPLAYED, PlanSource.MEASURED)
    ours = [verdict for verdict in file.verdicts if verdict.circumstances.artifact == artifact]
    return max(ours, key=lambda v: (ranks.index(v.source), v.measured_at), default=None)
