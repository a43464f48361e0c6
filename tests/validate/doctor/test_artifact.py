"""What the doctor makes of artifacts."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from converting import build
from light_core_ml import LightCoreML
from recorded_system import RecordedSystem

from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance, InvarianceVerdict
from anespec.runtime.backends import circumstances
from anespec.runtime.backends.coreml.compiled import compiled_shard
from anespec.runtime.backends.coreml.library import ComputeUnits
from anespec.runtime.backends.coreml.load_probe import Outcome
from anespec.runtime.backends.coreml.memory import remember
from anespec.runtime.backends.coreml.start_times import FirstPass, StartTimes
from anespec.validate.doctor.artifact import look_into
from anespec.validate.findings import Finding, Level

MAC = RecordedSystem.read("m4-max")
LINUX = replace(MAC, name="Linux", commands={})


@pytest.fixture(scope="module")
def made(families: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Target, Path]:
    folder = tmp_path_factory.mktemp("doctor")
    return {
        target: build(families / "llama.gguf", folder / f"{target}.anespec", target=target, context=64).path
        for target in (Target.CPU, Target.MAC)
    }


def findings(path: Path, system: RecordedSystem) -> dict[str, Finding]:
    return {finding.subject: finding for finding in look_into(Artifact(path), system)}


@pytest.mark.slow
def test_an_artifact_of_this_machine_is_only_unjudged(made: dict[Target, Path]) -> None:
    found = findings(made[Target.CPU], LINUX)
    assert {s: f.level for s, f in found.items() if f.level is not Level.OK} == {
        "compiled": Level.NOT_HERE,
        "golden gate": Level.WARN,
        "exactness gate": Level.WARN,
    }
    assert "without speculation" in found["exactness gate"].text
    assert (found["golden gate"].mend or "").startswith("anespec validate")


def test_an_artifact_for_another_target_is_named(made: dict[Target, Path]) -> None:
    assert "--target cpu" in (findings(made[Target.MAC], LINUX)["target"].mend or "")
    assert "--target mac" in (findings(made[Target.CPU], MAC)["target"].mend or "")
    assert findings(made[Target.CPU], LINUX)["target"].level is Level.OK
    assert findings(made[Target.MAC], MAC)["target"].level is Level.OK


def test_what_the_rules_foretell_is_said_with_its_mend(made: dict[Target, Path]) -> None:
    small = findings(made[Target.MAC], MAC)["small-shard"]
    assert small.level is Level.WARN
    assert small.mend
    assert "small-shard" not in findings(made[Target.CPU], LINUX)


def test_missing_and_short_files_are_found(made: dict[Target, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(made[Target.CPU], tmp_path / "m.anespec")
    assert findings(copy, LINUX)["files"].level is Level.OK
    (copy / "tokens.gguf").write_bytes(b"")
    found = findings(copy, LINUX)["files"]
    assert found.level is Level.FAIL
    assert "tokens.gguf: size in bytes is 0" in found.text
    shard = next((copy / "shards").iterdir())
    shutil.rmtree(shard)
    assert shard.name in findings(copy, LINUX)["files"].text


def test_memory_is_compared_with_what_there_is(made: dict[Target, Path]) -> None:
    path = made[Target.CPU]
    assert findings(path, replace(LINUX, bytes_of_memory=(1000, 10)))["size"].level is Level.FAIL
    assert findings(path, replace(LINUX, bytes_of_memory=(10**12, 10)))["size"].level is Level.WARN
    assert findings(path, LINUX)["size"].level is Level.OK


def test_what_core_ml_made_of_the_shards_is_counted(made: dict[Target, Path], tmp_path: Path) -> None:
    artifact = Artifact(shutil.copytree(made[Target.MAC], tmp_path / "m.anespec"))
    compiler, shards = LightCoreML(), artifact.manifest.shards

    def found() -> list[Finding]:
        subjects = ("compiled", "first contact")
        return [finding for finding in look_into(artifact, MAC, compiler) if finding.subject in subjects]

    assert [finding.level for finding in found()] == [Level.WARN]
    assert f"0 of {len(shards)} shards compiled" in found()[0].text
    compiled = [compiled_shard(artifact, shard, compiler, lambda _: None) for shard in shards]
    assert f"{len(shards)} of {len(shards)} shards compiled for this system, 0 tried" in found()[0].text
    for one in compiled:
        remember(one.beside(f"{ComputeUnits.CPU_AND_NE}.json"), Outcome())
    assert [finding.level for finding in found()] == [Level.OK]
    failed = Outcome(error="failed with error code: -14.")
    remember(compiled[0].beside(f"{ComputeUnits.CPU_AND_NE}.json"), failed)
    probe, _ = found()
    assert probe.level is Level.FAIL
    assert "the plan could not be built" in probe.text
    # After an upgrade of the system nothing of it counts.
    upgraded = look_into(artifact, MAC, LightCoreML("2"))
    assert any(f"0 of {len(shards)} shards compiled" in finding.text for finding in upgraded)


def test_what_starting_takes_is_told(made: dict[Target, Path], tmp_path: Path) -> None:
    artifact = Artifact(shutil.copytree(made[Target.MAC], tmp_path / "m.anespec"))
    compiler = LightCoreML()
    slow = StartTimes(load_seconds=1, passes=(FirstPass(rows=1, seconds=112), FirstPass(rows=4, seconds=133)))
    quick = StartTimes(
        load_seconds=1, passes=(FirstPass(rows=1, seconds=0.1), FirstPass(rows=4, seconds=0.1))
    )

    def found() -> list[Finding]:
        every = look_into(artifact, MAC, compiler)
        return [finding for finding in every if finding.subject == "start, coreml"]

    places = []
    for shard in artifact.manifest.shards:
        one = compiled_shard(artifact, shard, compiler, lambda _: None)
        places.append(one.beside(f"{ComputeUnits.CPU_AND_NE}.json"))
        assert not found()
        remember(places[-1], Outcome(first=slow))
    (start,) = found()
    assert start.level is Level.WARN
    assert "(4 rows)" in start.text
    assert start.mend is not None
    for place in places:
        remember(place, Outcome(first=slow, last=quick))
    (start,) = found()
    assert start.level is Level.OK
    assert "; the latest one loading" in start.text


def test_verdicts_of_other_circumstances_are_told(made: dict[Target, Path], tmp_path: Path) -> None:
    artifact = Artifact(shutil.copytree(made[Target.CPU], tmp_path / "m.anespec"))
    here = circumstances(artifact, "auto")
    there = here.model_copy(update={"backend": "torch", "threads": 7})
    for place in (here, there):
        held = [
            InvarianceVerdict(invariance=invariance, cases=1, unequal=0, largest_difference=0)
            for invariance in Invariance
        ]
        verdict = ExactnessVerdict(circumstances=place, form="quick", invariances=tuple(held))
        artifact.record_verdict(ExactnessFile, verdict)
    found = {finding.subject: finding for finding in look_into(artifact, LINUX)}
    assert found["exactness gate"].level is Level.OK
    assert "exactness pass on torch" in found["elsewhere"].text
    assert "7 threads" in found["elsewhere"].text


def test_what_a_link_stands_for_is_found(made: dict[Target, Path], tmp_path: Path) -> None:
    """Every start refuses it."""
    copy = shutil.copytree(made[Target.CPU], tmp_path / "m.anespec")
    moved = (copy / "tokens.gguf").rename(tmp_path / "tokens.gguf")
    (copy / "tokens.gguf").symlink_to(moved)
    found = findings(copy, LINUX)["files"]
    assert found.level is Level.FAIL
    assert "tokens.gguf: is a link" in found.text
