"""Check an artifact: its files, target, size, compiled shards, verdicts and rules."""

from collections.abc import Iterator
from typing import Any

from anespec.convert.planning.shard_limits import PROCESS_BYTES, PROCESS_EVIDENCE
from anespec.manifests.residency import PlanSource, ResidencyFile, Severity
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact, Damage, find_damage
from anespec.manifests.verdicts import ExactnessFile, RunEnvironment, Status, VerdictFile
from anespec.runtime.backends import AUTO, BACKENDS, COREML, WORKER, circumstances
from anespec.runtime.backends.coreml.compiled import Compiler, known_shard
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLTools
from anespec.runtime.backends.coreml.memory import recorded_starts, remembered
from anespec.runtime.backends.coreml.start_times import Starts
from anespec.system.coreml_errors import error_sentence
from anespec.system.errors import AnespecError
from anespec.system.formatting import bytes_text, counted, listed
from anespec.validate.doctor.machine import has_engine
from anespec.validate.doctor.system import System
from anespec.validate.findings import Finding, Level
from anespec.validate.golden.figures import GoldenFile
from anespec.validate.summary import KnownVerdicts

MEMORY_FACTOR = 1.3
"""A running portable backend's memory divided by the artifact's bytes (docs/DESIGN.md, section 9)."""

MAX_RULES = 8
MAX_PLACES = 4


def look_into(artifact: Artifact, system: System, compiler: Compiler | None = None) -> tuple[Finding, ...]:
    """Return all findings on an artifact on a machine, without loading the model.

    Files are hashed, unless `artifact.hashes` has their hashes. If files are damaged, no verdicts are
    reported. `compiler` is the one that would have compiled the shards, coremltools by default.
    """
    if damage := find_damage(artifact):
        return (_damaged(artifact, damage), *_target(artifact, system), *_memory(artifact, system))
    return (
        _whole(artifact),
        *_target(artifact, system),
        *_memory(artifact, system),
        *_compiled(artifact, system, compiler or CoreMLTools()),
        *_verdicts(artifact),
        *_rules(artifact),
    )


def _target(artifact: Artifact, system: System) -> Iterator[Finding]:
    manifest = artifact.manifest
    text = (
        f"for {manifest.target}, {'+'.join(map(str, manifest.topology))} layers in "
        f"{counted(len(manifest.shards), 'shard')}, block {manifest.block}, "
        f"{counted(manifest.sequences, 'sequence')} of {manifest.context} tokens"
    )
    if has_engine(system) and manifest.target is Target.CPU:
        yield Finding(
            subject="target",
            level=Level.WARN,
            text=f"{text}: it will not run on the Neural Engine well",
            mend="convert again with --target mac",
        )
    elif not has_engine(system) and manifest.target is not Target.CPU:
        yield Finding(
            subject="target",
            level=Level.WARN,
            text=f"{text}: the portable backend runs it here, slower than one of its own",
            mend="convert again with --target cpu for this machine",
        )
    else:
        yield Finding(subject="target", level=Level.OK, text=text)


def _damaged(artifact: Artifact, damage: tuple[Damage, ...]) -> Finding:
    others = f" with {counted(len(damage) - 1, 'other part')}" if damage[1:] else ""
    text = f"damaged{others}, so no verdict holds: {damage[0].said(artifact.root)}"
    return Finding(subject="files", level=Level.FAIL, text=text)


def _whole(artifact: Artifact) -> Finding:
    size = sum(shard.bytes for shard in artifact.manifest.shards) + artifact.manifest.tokens.bytes
    return Finding(subject="files", level=Level.OK, text=f"all there and unchanged, {bytes_text(size)}")


def _memory(artifact: Artifact, system: System) -> Iterator[Finding]:
    manifest = artifact.manifest
    weights = sum(shard.bytes for shard in manifest.shards)
    needed = int(MEMORY_FACTOR * weights) + manifest.state_bytes
    whole, free = system.memory()
    text = f"{bytes_text(weights)} of weights and {bytes_text(manifest.state_bytes)} of KV state"
    if needed > whole:
        yield Finding(
            subject="size",
            level=Level.FAIL,
            text=f"{text} take about {bytes_text(needed)}, and this machine has {bytes_text(whole)}",
            mend="choose a smaller --weights, --context or model",
        )
    elif needed > free:
        yield Finding(
            subject="size",
            level=Level.WARN,
            text=f"{text} take about {bytes_text(needed)}, and {bytes_text(free)} are free",
            mend="close other programs",
        )
    else:
        yield Finding(subject="size", level=Level.OK, text=text)
    if has_engine(system) and weights > PROCESS_BYTES and manifest.target is not Target.CPU:
        yield Finding(
            subject="process",
            level=Level.WARN,
            text=f"one process holds about {bytes_text(PROCESS_BYTES)} on the Neural Engine "
            f"({PROCESS_EVIDENCE})",
            mend="build the native worker (anespec worker build), which spreads shards over processes",
        )


def _compiled(artifact: Artifact, system: System, compiler: Compiler) -> Iterator[Finding]:
    """Report Core ML's compiled shards and the results of their load probes."""
    if not has_engine(system):
        yield Finding(subject="compiled", level=Level.NOT_HERE, text="Core ML compiles shards on a Mac alone")
        return
    shards = artifact.manifest.shards
    compiled = [known for shard in shards if (known := known_shard(artifact, shard, compiler)) is not None]
    places = [one.beside(f"{ComputeUnits.CPU_AND_NE}.json") for one in compiled]
    probes = [(one, remembered(place)) for one, place in zip(compiled, places, strict=True)]
    for one, outcome in probes:
        if outcome is not None and outcome.error is not None:
            yield Finding(
                subject="first contact",
                level=Level.FAIL,
                text=f"{one.shard.path}: {error_sentence(outcome.error)}",
                mend=f"fix that, or remove {one.path.parent} to try the shard again",
            )
    if len(compiled) == len(shards) and (starts := recorded_starts(places)) is not None:
        yield _start(COREML, starts)
    if BACKENDS[WORKER].unavailable() is None and (starts := BACKENDS[WORKER].starts(artifact)) is not None:
        yield _start(WORKER, starts)
    tried = sum(outcome is not None for _, outcome in probes)
    text = f"{len(compiled)} of {counted(len(shards), 'shard')} compiled for this system, {tried} tried"
    if tried == len(shards):
        yield Finding(subject="compiled", level=Level.OK, text=text)
    else:
        yield Finding(
            subject="compiled",
            level=Level.WARN,
            text=f"{text}: the first start compiles the others, which takes minutes",
            mend=f"anespec validate {artifact.root} compiles and judges them",
        )


def _start(backend: str, starts: Starts) -> Finding:
    """Report the start times on a backend, in the first process and in the last one."""
    return Finding(
        subject=f"start, {backend}",
        level=Level.WARN if starts.is_long else Level.OK,
        text=str(starts),
        mend="compare with --shapes static and functions, as `anespec selftest` does"
        if starts.is_long
        else None,
    )


def _verdicts(artifact: Artifact) -> Iterator[Finding]:
    try:
        here = circumstances(artifact, AUTO)
    except AnespecError as error:
        yield Finding(subject="backend", level=Level.FAIL, text=str(error), mend="install what it needs")
        return
    known = KnownVerdicts.of(artifact, here)
    place = f"{here.backend}, {counted(here.threads, 'thread')}"
    yield Finding(subject="backend", level=Level.OK, text=f"{here.backend} {here.library_version}")
    golden, exactness = known.golden, known.exactness
    yield _gate(artifact, GoldenFile, Status.NOT_RUN if golden is None else golden.standing, place)
    yield _gate(artifact, ExactnessFile, Status.NOT_RUN if exactness is None else exactness.standing, place)
    if known.quality is not None and known.quality.failures:
        yield Finding(
            subject="quality gate",
            level=Level.FAIL,
            text=f"failed on {place}: {listed(known.quality.failures)}",
            mend=(
                "convert with more precise --weights, or score the text again: "
                f"anespec validate {artifact.root} --quality TEXT"
            ),
        )
    yield from _elsewhere(artifact, here)
    if known.residency is not None:
        predicted = known.residency.source is PlanSource.PREDICTED
        fails = not known.residency.passed and artifact.manifest.target is not Target.CPU
        yield Finding(
            subject="residency gate",
            level=(Level.WARN if predicted else Level.FAIL) if fails else Level.OK,
            text=f"{known.residency.source}: {len(known.residency.off_ane)} of "
            f"{counted(len(known.residency.shards), 'shard')} are not on the Neural Engine",
            mend="`anespec validate` lists the fixes" if fails else None,
        )
    elif artifact.manifest.target is not Target.CPU:
        yield _gate(artifact, ResidencyFile, Status.NOT_RUN, "rules predict it anywhere")


def _elsewhere(artifact: Artifact, here: RunEnvironment) -> Iterator[Finding]:
    """Report golden and exactness verdicts from other environments."""
    others: dict[str, list[str]] = {}
    for gate, file in (("golden", GoldenFile), ("exactness", ExactnessFile)):
        for verdict in artifact.read_verdicts(file).verdicts:
            at = verdict.circumstances
            if at.artifact == artifact.fingerprint and at != here:
                place = f"{at.backend} {at.library_version}, {counted(at.threads, 'thread')}, {at.machine}"
                others.setdefault(place, []).append(f"{gate} {verdict.standing}")
    for place, verdicts in list(others.items())[:MAX_PLACES]:
        yield Finding(subject="elsewhere", level=Level.OK, text=f"{listed(verdicts)} on {place}")


def _gate(artifact: Artifact, kind: type[VerdictFile[Any]], standing: Status, place: str) -> Finding:
    gate, subject = kind.gate, f"{kind.gate} gate"
    if standing is Status.FAIL:
        return Finding(
            subject=subject,
            level=Level.FAIL,
            text=f"failed on {place}",
            mend="use another backend, or convert with other options"
            if gate == "exactness"
            else "convert the model again; if it fails again, report the output of `anespec validate`",
        )
    if standing is Status.NOT_RUN:
        return Finding(
            subject=subject,
            level=Level.WARN,
            text=f"{_not_run_reason(artifact, kind)} ({place})"
            + (", so text is generated without speculation until it runs" if gate == "exactness" else ""),
            mend=f"anespec validate {artifact.root}",
        )
    return Finding(subject=subject, level=Level.OK, text=f"{standing} on {place}")


def _not_run_reason(artifact: Artifact, kind: type[VerdictFile[Any]]) -> str:
    if kind.gate in artifact.unreadable_verdicts([kind]):
        return f"gates/{kind.gate}.json cannot be read, so its verdicts are lost"
    verdicts = artifact.read_verdicts(kind).verdicts
    if verdicts and not any(v.circumstances.artifact == artifact.fingerprint for v in verdicts):
        return "not run since the artifact changed"
    return "not run here" if verdicts else "never run"


def _rules(artifact: Artifact) -> Iterator[Finding]:
    """Report the residency rules that predict a failure, for an artifact for a Neural Engine."""
    if artifact.manifest.target is Target.CPU:
        return
    from anespec.validate.residency.prediction import predict
    from anespec.validate.residency.shard_view import view_artifact

    try:
        made = predict(view_artifact(artifact), artifact.fingerprint, artifact.manifest.block)
    except AnespecError as error:
        yield Finding(subject="rules", level=Level.FAIL, text=str(error))
        return
    failing = [found for found in made.findings if found.severity is Severity.FAIL]
    for rule in [*dict.fromkeys(found.rule for found in failing)][:MAX_RULES]:
        first = next(found for found in failing if found.rule == rule)
        shards = len({found.shard for found in failing if found.rule == rule})
        yield Finding(
            subject=rule,
            level=Level.WARN,
            text=f"predicted in {counted(shards, 'shard')}: {first.subject}: {first.detail}",
            mend=first.mend,
        )
    if not failing:
        yield Finding(subject="rules", level=Level.OK, text="no known rule speaks against residency")
