"""The workflows of .github: nothing unpinned, no more rights than needed, and no token that is kept."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
PINNED = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40}")
SYSTEMS = {"ubuntu-24.04", "macos-15"}


def workflow(name: str) -> dict[str, Any]:
    """A workflow as it is read; YAML takes its key `on` for a truth value, which is put right."""
    found = yaml.safe_load((FOLDER / name).read_text())
    return {("on" if key is True else key): value for key, value in found.items()}


def steps(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every step of every job."""
    for job in found["jobs"].values():
        yield from job.get("steps", ())


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return workflow("release.yml")


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_actions_are_pinned_and_rights_are_few(name: str) -> None:
    found = workflow(name)
    used = [step["uses"] for step in steps(found) if "uses" in step]
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    # Each pin says in a comment which version it is.
    assert len(re.findall(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", (FOLDER / name).read_text(), re.M)) == len(used)
    assert found["permissions"] == {"contents": "read"}
    assert "secrets." not in (FOLDER / name).read_text()
    for job in found["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file() and job.keys() == {"uses"}
        else:
            assert job["timeout-minutes"] <= 120
    for step in steps(found):
        assert ("uses" in step) != ("run" in step)
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # What a person who pushes may name is given by the environment, and never pasted into a script.
        assert "github." not in re.sub(r"\$\{\{ matrix\.\w+ \}\}", "", step.get("run", ""))


def test_every_script_that_a_workflow_calls_is_there() -> None:
    called = {
        script
        for path in FOLDER.iterdir()
        for step in steps(workflow(path.name))
        for script in re.findall(r"\.ci/\w+", step.get("run", ""))
    }
    assert called == {".ci/run", ".ci/bare", ".ci/mac"}
    assert [name for name in called if not (ROOT / name).stat().st_mode & 0o100] == []


def test_every_question_about_core_ml_is_a_job_of_its_own_on_both_systems() -> None:
    (job,) = workflow("mac.yml")["jobs"].values()
    told = subprocess.run([ROOT / ".ci" / "mac"], capture_output=True, text=True, check=True).stdout
    matrix = job["strategy"]["matrix"]
    assert matrix["question"] == told.split()
    assert matrix["system"] == ["macos-15", "macos-26"]
    assert job["runs-on"] == "${{ matrix.system }}"
    assert job["strategy"]["fail-fast"] is False, "one failure would hide the others"
    notice, ask, crashes, kept = job["steps"][2:]
    assert "virtual machine without a Neural Engine" in notice["run"]
    assert ask["run"] == ".ci/mac ${{ matrix.question }}"
    assert "DiagnosticReports" in crashes["run"]
    assert crashes["if"] == kept["if"] == "always()"
    assert kept["with"]["path"] == "build/mac/"


def test_every_file_of_tests_for_macs_is_asked() -> None:
    script = (ROOT / ".ci" / "mac").read_text()
    files = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "mac").glob("test_*.py")}
    questions = {"passes" if name == "worker" else name for name in files}
    assert questions <= set(script.split('QUESTIONS="')[1].split('"')[0].split())


def test_an_unknown_question_is_refused() -> None:
    done = subprocess.run([ROOT / ".ci" / "mac", "speed"], capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "no question is called speed" in done.stderr


def test_a_release_is_tried_on_both_systems_from_both_files(release: dict[str, Any]) -> None:
    job = release["jobs"]["try"]
    assert set(job["strategy"]["matrix"]["system"]) == SYSTEMS
    assert set(job["strategy"]["matrix"]["kind"]) == {"whl", "tar.gz"}
    assert job["runs-on"] == "${{ matrix.system }}"
    (run,) = [step["run"] for step in job["steps"] if "run" in step]
    assert run == ".ci/bare dist/*.${{ matrix.kind }} python"
    built = "\n".join(step.get("run", "") for step in release["jobs"]["build"]["steps"])
    assert "python -m build\n" in built
    assert "twine check --strict dist/*" in built


def test_pythons_tried_are_the_oldest_and_the_newest_that_the_package_takes(release: dict[str, Any]) -> None:
    oldest, beyond = re.findall(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"', _pyproject(), re.M)[0]
    assert release["jobs"]["try"]["strategy"]["matrix"]["python"] == [f"3.{oldest}", f"3.{int(beyond) - 1}"]


def test_only_what_was_tried_is_published_by_a_tag_and_without_a_token(release: dict[str, Any]) -> None:
    job = release["jobs"]["publish"]
    assert set(job["needs"]) == {"build", "test", "try"}
    assert job["if"] == "github.ref_type == 'tag'"
    assert release["on"]["push"] == {"tags": ["v*"]}
    assert job["environment"] == "pypi"
    assert job["permissions"] == {"id-token": "write"}
    *_, download, publish = job["steps"]
    assert download["uses"].startswith("actions/download-artifact@")
    assert publish["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "with" not in publish
    others = [name for name, other in release["jobs"].items() if "permissions" in other]
    assert others == ["publish"]


@pytest.mark.parametrize(("version", "code"), [("0.1.0", 0), ("0.1.1", 1)])
def test_a_tag_of_another_version_ends_the_release(
    version: str, code: int, release: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "anespec-0.1.0.tar.gz").touch()
    (step,) = [step for step in steps(release) if "tag" in step.get("if", "")]
    done = subprocess.run(
        ["bash", "-c", step["run"]], cwd=tmp_path, env={"GITHUB_REF_NAME": f"v{version}"}, check=False
    )
    assert done.returncode == code


def test_what_ci_cannot_install_ends_it(tmp_path: Path) -> None:
    """Not root, and neither strace nor a browser: no test is run that would be skipped."""
    for name, text in {"dirname": "echo .ci", "id": "echo 1000", "make": "echo making"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", ".ci/run"],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        ".ci/run: tests need strace bsdutils chromium; install it with: "
        "sudo apt-get install strace bsdutils chromium\n"
    )
    assert "making" not in done.stdout


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()
