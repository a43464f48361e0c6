"""`anespec doctor` and `anespec selftest` as a person meets them."""

from pathlib import Path

import pytest
from commands import run

from anespec.cli.verbs.selftest import default_output
from anespec.system.user_folders import private_folder


@pytest.mark.slow
def test_the_doctor_says_what_it_found(artifact: Path) -> None:
    found = run("doctor", artifact, "--json")
    facts = found.json
    subjects = {finding["subject"]: finding["level"] for finding in facts["machine"]}
    assert {"chip", "system", "python", "coremltools", "memory", "disk"} <= subjects.keys()
    assert {"target", "files", "size"} <= {finding["subject"] for finding in facts["artifact"]}
    failed = [f for f in (*facts["machine"], *facts["artifact"]) if f["level"] == "fail"]
    assert found.code == (1 if failed else 0)
    alone = run("doctor")
    assert "coremltools" in alone.out
    assert run("doctor", artifact / "shards").code == 5


def test_what_would_go_wrong_ends_with_1(artifact: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.anespec"
    broken.mkdir()
    (broken / "manifest.json").write_bytes((artifact / "manifest.json").read_bytes())
    found = run("doctor", broken)
    assert found.code == 1
    assert found.is_one_sentence()
    assert "files" in found.err
    assert "convert the model again" in found.err
    assert run("doctor", broken, "--json").json["exit_code"] == 1


def test_the_doctor_is_told_what_is_no_artifact(gguf: Path, tmp_path: Path) -> None:
    model = run("doctor", gguf)
    assert (model.code, model.is_one_sentence()) == (5, True)
    assert "is a GGUF" in model.err
    missing = run("doctor", tmp_path / "nothing")
    assert (missing.code, missing.is_one_sentence()) == (8, True)
    assert "no file, no folder and no model in the cache" in missing.err


def test_a_look_at_one_step_does_not_take_the_place_of_the_whole_report() -> None:
    names = [default_output(False, ()), default_output(True, ()), default_output(False, ("kv", "states"))]
    assert [name.name for name in names] == ["report.zip", "report-quick.zip", "report-kv-states.zip"]


@pytest.mark.slow
def test_the_steps_are_listed_in_their_order() -> None:
    ids = [
        "shapes",
        "kv",
        "layout",
        "cpu",
        "table",
        "worker",
        "plans",
        "trained",
        "states",
        "numbers",
        "mixers",
        "repeat",
        "exactness",
        "topology",
        "gpu",
    ]
    assert [step["id"] for step in run("selftest", "--list", "--json").json["steps"]] == ids
    assert [line.split()[0] for line in run("selftest", "--list").out.splitlines()] == ids


@pytest.mark.slow
def test_what_cannot_be_asked_is_one_sentence(tmp_path: Path) -> None:
    unknown = run("selftest", "--only", "nothing", "-o", tmp_path / "r.zip")
    assert unknown.code == 2
    assert unknown.is_one_sentence()
    assert run("selftest", "--quick", "--layers", 2).code == 2
    assert run("selftest", "--cache-limit", "much").code == 2
    assert run("selftest", "--model", tmp_path / "missing.gguf").code == 2
    (tmp_path / "none.gguf").write_text("no model")
    other = run("selftest", "--quick", "--model", tmp_path / "none.gguf", "-o", tmp_path / "r.zip")
    assert (other.code, other.is_one_sentence()) == (3, True)
    assert not (tmp_path / "r.zip").exists()


def test_a_report_that_cannot_be_written_is_said_before_an_hour_of_trials(tmp_path: Path) -> None:
    found = run("selftest", "--only", "cpu", "-o", tmp_path / "missing" / "r.zip")
    assert found.code == 6
    assert found.is_one_sentence()
    assert "running" not in found.out + found.err


def test_one_self_test_at_a_time_works_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "anespec" / "selftest-cpu-quick"
    with private_folder(folder) as held, held.alone("another self-test"):
        found = run("selftest", "--quick", "--only", "cpu", "-o", tmp_path / "r.zip")
    assert found.code == 6
    assert found.is_one_sentence()
    assert "another self-test is running there" in found.err
    assert folder.is_dir()
