"""What is said of an artifact whose files changed after its gates passed: the damage, first, everywhere."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from html_page import Page

from anespec.cli.inspect.verb import inspect
from anespec.cli.verbs.doctor import doctor
from anespec.cli.verbs.validate import validate
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance, InvarianceVerdict
from anespec.runtime.backends import circumstances
from anespec.system.errors import AnespecError

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

ON = ("--backend", "torch", "--threads", "1")


def flipped(artifact: Path) -> None:
    """One bit of the head's weights."""
    weights = next((artifact / "shards" / "head_00.mlpackage").rglob("weight.bin"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)


def without_a_shard(artifact: Path) -> None:
    shutil.rmtree(artifact / "shards" / "head_00.mlpackage")


def cut_short(artifact: Path) -> None:
    tokens = artifact / "tokens.gguf"
    tokens.write_bytes(tokens.read_bytes()[:-1])


DAMAGES = {"head_00": flipped, "head_00.mlpackage": without_a_shard, "tokens.gguf": cut_short}


@pytest.fixture(scope="module")
def judged(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that may speculate, and all else that the exactness gate may allow."""
    copy = Artifact(shutil.copytree(artifact, tmp_path_factory.mktemp("judged") / "m.anespec"))
    for backend, threads in (("torch", 1), ("auto", None)):
        here = circumstances(copy, backend, threads)
        held = [InvarianceVerdict(invariance=i, cases=8, unequal=0, largest_difference=0) for i in Invariance]
        exactness = ExactnessVerdict(circumstances=here, form="full", invariances=tuple(held))
        copy.record_verdict(ExactnessFile, exactness)
    return copy.root


@pytest.fixture(params=DAMAGES.items(), ids=lambda damage: damage[1].__name__)
def damaged(request: pytest.FixtureRequest, judged: Path, tmp_path: Path) -> tuple[Path, str]:
    """The artifact after each damage, and the name of what is damaged."""
    named, damage = request.param
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    damage(copy)
    return copy, named


def asked(verb: Callable[..., Any], *arguments: object) -> Result:
    return CliRunner().invoke(verb, [str(argument) for argument in arguments])  # type: ignore[arg-type]


def failure(result: Result, code: int) -> AnespecError:
    error = result.exception
    assert isinstance(error, AnespecError), (result.output, error)
    assert error.exit_code == code
    return error


def test_the_records_alone_allow_everything(judged: Path) -> None:
    """Else the tests below could not fail."""
    found = json.loads(asked(inspect, judged, "--json").stdout)
    assert {gate["standing"] for gate in found["gates"]} == {"pass"}
    assert found["damage"] == []


def test_validate_begins_with_the_damage(damaged: tuple[Path, str]) -> None:
    artifact, named = damaged
    result = asked(validate, artifact, *ON)
    said = str(failure(result, 5))
    assert result.stdout.splitlines()[0] == said
    assert said.startswith("m.anespec is damaged in 1 of ")
    assert named in said
    assert "may speculate" not in result.stdout + said
    assert result.stdout.count("gate: not run (the artifact is damaged)") == 3


def test_so_does_its_json(damaged: tuple[Path, str]) -> None:
    artifact, named = damaged
    error = failure(asked(validate, artifact, *ON, "--json"), 5)
    facts = error.facts
    assert facts["summary"] == str(error)
    assert facts["standing"] == "not run"
    (path,) = facts["damage"]  # type: ignore[misc]
    assert named in path
    assert {gate["standing"] for gate in facts["gates"]} == {"not run"}  # type: ignore[attr-defined]


def test_the_page_shows_no_verdict(damaged: tuple[Path, str]) -> None:
    artifact, named = damaged
    failure(asked(validate, artifact, *ON), 5)
    html = (artifact / "report.html").read_text("utf-8")
    text = Page.of(html).text
    assert "✗ damaged m.anespec is damaged in 1 of " in text
    assert named in text
    assert "may speculate" not in text
    assert 'class="green"' not in html
    assert str(artifact.parent) not in html, "the page may be sent to somebody"


@pytest.mark.fast_only("cut_short")
def test_the_doctor_says_it_first_and_fails(damaged: tuple[Path, str]) -> None:
    artifact, named = damaged
    result = asked(doctor, artifact)
    error = failure(result, 1)
    first = result.stdout.splitlines()[0]
    assert first.startswith("files: damaged, so no verdict holds: ")
    assert named in first
    assert str(error).startswith("files")
    assert "No problem found" not in result.output
    findings = failure(asked(doctor, artifact, "--json"), 1).facts["artifact"]
    subjects = [(finding["subject"], finding["level"]) for finding in findings]  # type: ignore[attr-defined]
    assert subjects[0] == ("files", "fail")
    assert not [subject for subject, _ in subjects if "gate" in subject]


def test_so_does_inspect(damaged: tuple[Path, str]) -> None:
    artifact, named = damaged
    result = asked(inspect, artifact)
    said = str(failure(result, 5))
    assert result.stdout.splitlines()[0] == said
    assert named in said
    assert "every shard computes" not in result.output
    facts = failure(asked(inspect, artifact, "--json"), 5).facts
    assert (len(facts["damage"]), facts["gates"]) == (1, [])  # type: ignore[arg-type]


def test_records_that_cannot_be_read_are_no_gates_that_nobody_asked(judged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    (copy / "gates" / "golden.json").write_text("{")
    found = json.loads(asked(doctor, copy, "--json").stdout)["artifact"]
    (golden,) = [finding for finding in found if finding["subject"] == "golden gate"]
    assert (golden["level"], golden["text"].partition(",")[0]) == ("warn", "gates/golden.json cannot be read")
    assert "gates/golden.json cannot be read" in asked(inspect, copy).stdout


def test_verdicts_from_before_a_change_of_the_manifest_are_told_apart(judged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["source"]["sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    found = json.loads(asked(doctor, copy, "--json").stdout)["artifact"]
    words = {finding["subject"]: finding["text"] for finding in found}
    assert words["exactness gate"].startswith("not run since the artifact changed")
    assert "No gate has judged it since it changed" in asked(inspect, copy).stdout
