"""Render report.html. All text is escaped, since names come from an artifact, and the page loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anespec.gguf.container import GGUFFile
from anespec.manifests.residency import ResidencyFile, ResidencyVerdict
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact, Damage, damage_sentence
from anespec.manifests.verdicts import (
    OPTIONAL,
    REQUIRED_FOR_SPECULATION,
    ExactnessFile,
    ExactnessVerdict,
    RunEnvironment,
    Status,
    Verdict,
    VerdictFile,
    VerdictT,
    invariance_words,
)
from anespec.runtime.backends import AUTO, circumstances
from anespec.system.errors import AnespecError
from anespec.system.formatting import counted, listed
from anespec.validate.golden.figures import GoldenFile, GoldenVerdict
from anespec.validate.options import GATES
from anespec.validate.other_formats import FormatsFile
from anespec.validate.page.commands import as_argument, convert_command, generate_commands, validate_commands
from anespec.validate.page.golden import view_golden
from anespec.validate.page.quality import view_changes, view_quality
from anespec.validate.page.residency import view_residency
from anespec.validate.page.sample import view_sample
from anespec.validate.page.shards import view_shards
from anespec.validate.page.templating import TEMPLATES, render_report
from anespec.validate.page.weights import view_formats, view_weights
from anespec.validate.quality.verdict import QualityFile, QualityVerdict
from anespec.validate.report import equal_widths
from anespec.validate.residency.gate import decides
from anespec.validate.sample.figures import SampleFile
from anespec.validate.summary import summary


@dataclass(frozen=True)
class Badge:
    """The status of a gate."""

    gate: str
    standing: Status
    words: str


def residency_badge(
    verdicts: Sequence[ResidencyVerdict], target: Target, required: bool = False
) -> Badge | None:
    """Return the badge of the newest verdict; None for an artifact for the CPU unless `required`."""
    if target is Target.CPU and not required:
        return None
    if not verdicts:
        return _not_run("residency")
    newest = verdicts[0]
    shards = counted(len(newest.shards), "shard")
    standing = newest.standing
    if decides(newest, required):
        standing = Status.PASS if newest.passed else Status.FAIL
    words = f"{newest.source}: {len(newest.shards) - len(newest.off_ane)} of {shards} on the Neural Engine"
    return Badge("residency", standing, words)


def golden_badge(verdicts: Sequence[GoldenVerdict]) -> Badge:
    """Return the badge of the worst verdict of all environments."""
    return _by_place("golden", [(v.circumstances.backend, v.standing) for v in verdicts])


def exactness_badge(verdicts: Sequence[ExactnessVerdict]) -> Badge:
    """Return the badge of the worst verdict of all environments."""
    return _by_place("exactness", [(v.circumstances.backend, v.standing) for v in verdicts])


def quality_badge(verdicts: Sequence[QualityVerdict]) -> Badge:
    """Return the badge of the worst text; without any limit that of the largest mean divergence."""
    if not verdicts or {verdict.standing for verdict in verdicts} != {Status.REPORTED}:
        return _by_place("quality", [(v.text.name, v.standing) for v in verdicts])
    kl = max(verdict.figures.kl.mean for verdict in verdicts)
    return Badge("quality", Status.REPORTED, f"reported: mean KL divergence up to {kl:.2g} nats, no limit")


def _by_place(gate: str, outcomes: Sequence[tuple[str, Status]]) -> Badge:
    if not outcomes:
        return _not_run(gate)
    found: dict[Status, dict[str, None]] = {}
    for place, standing in outcomes:
        found.setdefault(standing, {})[place] = None
    ranked = Status.ranked(found)
    words = [f"{standing} on {listed(list(found[standing]))}" for standing in ranked]
    return Badge(gate, ranked[0], "; ".join(words))


def _not_run(gate: str) -> Badge:
    return Badge(gate, Status.NOT_RUN, "not run")


PAGE_NAME = "report.html"

MAX_VERDICTS = 12
"""The most verdicts of a gate that are shown; the newest come first."""
LONGEST_NAME = 120


def write_page(
    artifact: Artifact,
    here: RunEnvironment | None = None,
    damage: tuple[Damage, ...] = (),
    required: bool = False,
) -> Path:
    """Write report.html into the artifact in one step; see `render_page` and `Artifact.write_page`.

    Raises:
        StorageError: the page cannot be written.
    """
    return artifact.write_page(PAGE_NAME, render_page(artifact, here, damage, required).encode())


def render_page(
    artifact: Artifact,
    here: RunEnvironment | None = None,
    damage: tuple[Damage, ...] = (),
    required: bool = False,
) -> str:
    """Return the page as HTML, from the manifest and the verdicts on the present shards.

    Verdicts measured `here` come first. If there is `damage`, no verdict holds and none is shown. With
    `required`, a predicted residency verdict decides too.
    """
    if damage:
        return _damaged_page(artifact, damage)
    manifest = artifact.manifest
    residency = _current(artifact, ResidencyFile)
    golden = _current(artifact, GoldenFile)
    exactness = _current(artifact, ExactnessFile)
    quality = _current(artifact, QualityFile)
    samples, formats = _current(artifact, SampleFile), _current(artifact, FormatsFile)
    places = _places([*golden, *exactness, *quality, *samples], here)
    folder = artifact.root.resolve().name
    return render_report(
        TEMPLATES / "page.jinja",
        manifest=manifest,
        name=_model_name(artifact),
        fingerprint=artifact.fingerprint,
        sentences=[summary(artifact, place) for place in places or [circumstances(artifact, AUTO)]],
        for_cpu=manifest.target is Target.CPU,
        badges=[
            badge
            for badge in (
                golden_badge(golden),
                exactness_badge(exactness),
                quality_badge(quality),
                residency_badge(residency, manifest.target, required),
            )
            if badge is not None
        ],
        samples=[
            view_sample(run, manifest) for place in places for run in samples if run.circumstances == place
        ],
        formats=view_formats(formats[0], manifest) if formats else None,
        folder=as_argument(folder),
        commands=[
            convert_command(manifest, folder),
            *validate_commands(folder, places, quality),
            *generate_commands(folder, samples),
        ],
        shards=view_shards(manifest),
        weights=view_weights(manifest.tensors),
        residency=[view_residency(verdict) for verdict in residency],
        golden=[view_golden(verdict) for verdict in golden],
        exactness=exactness,
        required=REQUIRED_FOR_SPECULATION,
        optional=OPTIONAL,
        invariance_words=invariance_words,
        equal_widths=equal_widths,
        quality=[view_quality(verdict) for verdict in quality],
        changes=view_changes(quality),
    )


def _damaged_page(artifact: Artifact, damage: tuple[Damage, ...]) -> str:
    """Return the page of a damaged artifact, without verdicts."""
    manifest, folder = artifact.manifest, artifact.root.resolve().name
    return render_report(
        TEMPLATES / "damaged.jinja",
        manifest=manifest,
        name=manifest.source.name[:LONGEST_NAME],
        for_cpu=manifest.target is Target.CPU,
        weights=view_weights(manifest.tensors),
        sentence=damage_sentence(artifact, damage),
        damage=[found.said(artifact.root) for found in damage],
        gates=GATES,
        command=convert_command(manifest, folder),
    )


def _model_name(artifact: Artifact) -> str:
    """Return the model's name from its vocabulary file, or else the GGUF's name."""
    try:
        with GGUFFile(artifact.tokens_path()) as tokens:
            name = " ".join(tokens.text("general.name", "").split())
    except AnespecError:
        name = ""
    name = name or artifact.manifest.source.name
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _places(verdicts: list[Verdict], here: RunEnvironment | None) -> list[RunEnvironment]:
    """Return the environments of the verdicts, `here` first.

    Those with most kinds of verdicts follow, of these the newest first.
    """
    kinds: dict[str, set[type]] = {}
    places: dict[str, RunEnvironment] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.measured_at, reverse=True):
        key = verdict.circumstances.model_dump_json()
        places.setdefault(key, verdict.circumstances)
        kinds.setdefault(key, set()).add(type(verdict))
    ranked = sorted(places, key=lambda key: (places[key] != here, -len(kinds[key])))
    return [places[key] for key in ranked[:MAX_VERDICTS]]


def _current(artifact: Artifact, kind: type[VerdictFile[VerdictT]]) -> list[VerdictT]:
    """Return the verdicts on the present artifact, the newest first."""
    verdicts = artifact.read_verdicts(kind).verdicts
    mine = [v for v in verdicts if v.circumstances.artifact == artifact.fingerprint]
    return sorted(mine, key=lambda verdict: verdict.measured_at, reverse=True)[:MAX_VERDICTS]
