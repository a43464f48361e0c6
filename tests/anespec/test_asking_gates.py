"""How `validate` asks its gates: what is kept, what an error stops, the last line; what `generate` says."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from commands import command_of, run
from fresh_process import answered_here
from html_page import Page
from once import Once
from patience import PATIENCE
from slow import slow_but

from anespec.cli.verbs.generate import generate
from anespec.cli.verbs.validate import validate
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance, InvarianceVerdict
from anespec.runtime.backends import circumstances
from anespec.system.errors import AnespecError, GoldenGateError, Interrupted

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

GATES = ["residency", "golden", "exactness", "quality"]
ON = ("--backend", "torch", "--threads", 1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The cat sat on the mat. " * 8)
    return path


def ask(artifact: Path, *arguments: object) -> Result:
    """Run the verb in this process."""
    return CliRunner().invoke(validate, [str(a) for a in (artifact, *ON, *arguments)])


def facts_of(result: Result) -> dict[str, Any]:
    value = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(value, dict)
    return value


def change_form(artifact: Path, before: str, after: str) -> None:
    """Let the exactness gate's verdict be of another form."""
    path = artifact / "gates" / "exactness.json"
    old = path.read_text()
    path.write_text(old.replace(f'"form": "{before}"', f'"form": "{after}"'))
    assert path.read_text() != old


@pytest.fixture(scope="module")
def judged(gguf: Path, text: Path, tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """A small artifact that every gate has judged: quickly, and in full as its verdict says."""
    path = tmp_path_factory.mktemp("judged") / "judged.anespec"
    asked = ("--quality-tokens", 30, "--quick", "--json")

    def make(path: Path) -> None:
        assert run("convert", gguf, "-o", path, "--target", "mac", "--context", 64).code == 0
        with answered_here():
            result = ask(path, "--quality", text, *asked)
        assert result.exception is None, result.exception
        assert result.stderr == "", "with --json nobody asked for progress"
        assert [gate["kept"] for gate in facts_of(result)["gates"]] == [False] * 4
        change_form(path, "quick", "full")

    return once(path, make, gguf, text, asked)


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a shard, reading the reference or checking a rule fails the test."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was measured")

    for place in (
        "anespec.runtime.backends.open_verifier",
        "anespec.validate.gates.open_verifier",
        "anespec.validate.gates.open_shard",
        "anespec.validate.gates.find_source",
        "anespec.validate.residency.gate.predict",
        "anespec.validate.quality.gate.open_verifier",
    ):
        monkeypatch.setattr(place, refuse)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("form", [(), ("--quick",)])
def test_verdicts_that_hold_are_shown_and_not_measured_again(
    judged: Path, text: Path, form: tuple[str, ...]
) -> None:
    chosen = ("--quality", text, "--quality-tokens", 30, *form)
    result = ask(judged, *chosen, "--json")
    assert result.exception is None, result.exception
    gates = facts_of(result)["gates"]
    assert [(gate["name"], gate["kept"]) for gate in gates] == [(name, True) for name in GATES]
    assert gates[2]["form"] == "full", "what saw more answers for what would have seen less"
    shown = ask(judged, *chosen).output
    assert len(re.findall(r"gate: [a-z ]+ \(measured \d{4}-\d\d-\d\d \d\d:\d\d, nothing changed", shown)) == 4
    assert shown.count("--again measures)") == 4, "the text is given, so that is true of quality, too"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    "changed",
    [("--again",), ("--threads", 2), ("--quality-tokens", 20), ("--quality", "another")],
    ids=lambda change: change[0],
)
def test_what_was_measured_otherwise_is_measured_again(
    judged: Path, text: Path, tmp_path: Path, changed: tuple[str, object]
) -> None:
    if changed[0] == "--quality":
        (tmp_path / "another").write_text(text.read_text() + "!")
        changed = ("--quality", tmp_path / "another")
    chosen = ("--gate", "quality", "--quality", text, "--quality-tokens", 30, *changed)
    assert isinstance(ask(judged, *chosen).exception, AssertionError)


@pytest.mark.usefixtures("nothing_runs")
def test_other_limits_judge_the_kept_figures(judged: Path, text: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    chosen = ("--gate", "quality", "--quality", text, "--quality-tokens", 30, "--json")
    before = facts_of(ask(copy, *chosen))["gates"][0]
    assert (before["standing"], before["decides"]) == ("reported", True)
    assert "only 30 tokens scored" in before["warnings"][0]
    result = ask(copy, *chosen, "--max-kl", 0)
    assert isinstance(result.exception, AnespecError)
    assert result.exception.exit_code == 14
    after = result.exception.facts["gates"][0]  # type: ignore[index]
    assert (after["standing"], after["measured_at"]) == ("fail", before["measured_at"])
    recorded = json.loads((copy / "gates" / "quality.json").read_text())["verdicts"]
    assert [verdict["max_kl"] for verdict in recorded] == [0.0]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_runs")
def test_a_quick_verdict_does_not_answer_the_full_question(judged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    change_form(copy, "full", "quick")
    quick = facts_of(ask(copy, "--gate", "exactness", "--json", "--quick"))["gates"][0]
    assert (quick["form"], quick["kept"]) == ("quick", True)
    assert isinstance(ask(copy, "--gate", "exactness").exception, AssertionError)


def test_a_kept_verdict_is_about_the_files_that_lie_there(judged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    weights = next((copy / "shards").rglob("weight.bin"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    result = ask(copy, "--gate", "golden", "--json")
    assert isinstance(result.exception, AnespecError)
    assert result.exception.exit_code == 5
    assert "sha256" in str(result.exception)


@pytest.mark.slow
@pytest.mark.parametrize("error", [GoldenGateError("it broke"), RuntimeError("it broke")], ids=str)
def test_a_gate_that_raises_stops_no_other(
    judged: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("anespec.validate.gates.golden_gate", broken)
    monkeypatch.setattr("anespec.validate.kept.kept_golden", lambda *_: None)
    (judged / "report.html").unlink()
    result = ask(judged)
    assert result.exception is error, "the exit code is that of the first gate that failed"
    places = [result.output.index(f"{gate} gate: ") for gate in GATES[:3]]
    assert places == sorted(places)
    assert "golden gate: not run (it broke)" in result.output
    assert "exactness gate: pass (" in result.output
    assert "neighbours" in result.output
    assert (judged / "report.html").exists()
    if isinstance(error, AnespecError):
        failing = ask(judged, "--json").exception
        assert isinstance(failing, AnespecError)
        gates = failing.facts["gates"]
        standings = [gate["standing"] for gate in gates]  # type: ignore[attr-defined]
        assert standings == ["reported", "not run", "pass", "reported"]
        assert gates[1]["error"] == "it broke"  # type: ignore[index]


def test_a_page_that_cannot_be_written_loses_no_table(judged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise AnespecError("the disk is full")

    monkeypatch.setattr("anespec.validate.page.write.write_page", full)
    result = ask(judged)
    assert isinstance(result.exception, AnespecError)
    assert "exactness gate: pass (" in result.output
    assert result.stdout.splitlines()[-1].startswith("On torch with 1 thread judged.anespec computes what")


@pytest.mark.slow
def test_the_last_line_says_what_the_artifact_may_do(judged: Path) -> None:
    last = ask(judged).stdout.splitlines()[-1]
    assert last.startswith("On torch with 1 thread judged.anespec computes what llama.gguf means and may ")
    assert facts_of(ask(judged, "--json"))["summary"] == last


@pytest.mark.slow
def test_a_piped_run_is_not_silent(judged: Path) -> None:
    result = ask(judged, "--again", "--quick", "--gate", "residency", "--gate", "exactness")
    assert result.exception is None, result.exception
    assert result.stderr.splitlines()[:2] == ["residency gate: running", "exactness gate: running"]


@pytest.mark.slow
def test_generate_says_why_it_measures_and_how_it_went(judged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")

    def stderr(threads: int) -> str:
        arguments = ("-p", "hello", "-n", 1, "--backend", "torch", "--threads", threads)
        result = CliRunner().invoke(generate, [str(a) for a in (copy, *arguments)])
        assert result.exception is None, result.exception
        assert result.stdout != ""
        return result.stderr

    assert "note: exactness" not in stderr(1), "the gate's verdict holds"
    other = stderr(2)
    assert "this model was checked with 1 thread, not 2" in other
    assert "on torch with 2 threads?" in other
    assert "note: exactness: pass, measured in " in other
    assert "note: exactness" not in stderr(2), "and now it is known"
    shutil.rmtree(copy / "gates")
    assert "this model was never checked on this machine" in stderr(1)


@pytest.mark.slow
def test_generate_goes_on_where_its_verdict_cannot_be_kept(judged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    shutil.rmtree(copy / "gates")
    (copy / "gates").write_text("in the way")
    outcome = run("generate", copy, "-p", "hello", "-n", 1, *ON)
    assert outcome.code == 0, outcome.err
    assert "could not be recorded" in outcome.err


@pytest.mark.slow
def test_progress_fits_a_terminal_of_80_columns(judged: Path) -> None:
    """In a pseudo-terminal: no line of progress is wider, and none is left behind."""
    if shutil.which("script") is None:
        pytest.skip("needs script(1) (apt-get install bsdutils)")
    command = " ".join(command_of("validate", judged, *ON, "--gate", "exactness", "--again", "--quick")[3:])
    python = command_of()[0]
    program = f"{python} -c 'from anespec.cli.main import main; main()' {command}"
    done = subprocess.run(
        ["script", "-qec", f"stty cols 80; {program}", "/dev/null"],
        capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    frames = re.split(r"[\r\n]|\x1b\[\d*[A-K]|\x1b\[\?25[hl]", done.stdout)
    bars = [
        bare
        for frame in frames
        if "gate: " in (bare := re.sub(r"\x1b\[[\d;]*m", "", frame)) and "left" in bare
    ]
    assert bars, "a terminal sees elapsed and remaining time"
    assert max(map(len, bars)) <= 80


def test_an_interrupted_run_says_what_is_kept(judged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anespec.checking.validation.exactness_gate", stopped)
    outcome = CliRunner().invoke(validate, [str(judged), "--gate", "residency", "--gate", "exactness"])
    assert isinstance(outcome.exception, Interrupted)
    assert str(outcome.exception) == "interrupted; the verdicts of gates that ended are kept"


def exactness(artifact: Path, form: str, holds: bool, backend: str = "torch") -> ExactnessVerdict:
    """A verdict of a gate that finds all or nothing, as torch with one thread would record it."""
    return ExactnessVerdict.model_validate(
        {
            "circumstances": circumstances(Artifact(artifact), backend, 1),
            "form": form,
            "invariances": [
                InvarianceVerdict(invariance=i, cases=8, unequal=0 if holds else 3, largest_difference=0)
                for i in Invariance
            ],
        }
    )


def set_exactness(artifact: Path, *verdicts: ExactnessVerdict) -> None:
    (artifact / "gates" / "exactness.json").write_text(ExactnessFile(verdicts=verdicts).model_dump_json())


def requires_agreement(artifact: Path, *arguments: object) -> dict[str, Any]:
    """Ask the gates, and hold exit code, standing, summary, tiles and JSON against each other."""
    result = ask(artifact, *arguments, "--json")
    error = result.exception
    assert error is None or isinstance(error, AnespecError), error
    facts = facts_of(result) if error is None else dict(error.facts)
    summary, standings = facts["summary"], {gate["name"]: gate["standing"] for gate in facts["gates"]}
    failed = [gate["name"] for gate in facts["gates"] if gate["standing"] == "fail"]
    assert facts["standing"] == (
        "fail" if failed else "pass" if standings.keys() & {"golden", "exactness"} else "reported"
    )
    assert (error is None) is not bool(failed)
    if error is not None:
        assert error.exit_code == {"residency": 11, "golden": 12, "exactness": 13, "quality": 14}[failed[0]]

    means, speculates = "computes what llama.gguf means", "may speculate"
    if "golden" in standings:
        assert summary.startswith(f"On torch with 1 thread m.anespec {means}")
    else:
        assert f"whether it {means} (on record: pass)" in summary
    match standings.get("exactness"):
        case "pass":
            assert f"{means} and {speculates}" in summary or f"m.anespec {speculates}" in summary
        case "fail":
            assert "not speculate" in summary
        case None:
            assert "whether it may speculate (on record: " in summary
            assert "not speculate" not in summary
    assert ("it fails" in summary) is (standings.get("quality") == "fail")

    html = (artifact / "report.html").read_text("utf-8")
    tiles = dict(re.findall(r"<b>. (\w+)</b><span>(.*?)</span>", html))
    for name, standing in standings.items():
        if name != "residency":
            assert standing in tiles[name], (name, standing, tiles)
    if not {"golden", "exactness", "quality"} - standings.keys():
        assert summary in Page.of(html).text
    return facts


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("limit", slow_but(["", "kept", "exceeded"], "exceeded"))
@pytest.mark.parametrize("asked", [(), ("golden",), ("exactness",), ("golden", "exactness")], ids=str)
@pytest.mark.parametrize("holds", [True, False])
def test_what_a_run_says_agrees(
    judged: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    holds: bool,
    asked: tuple[str, ...],
    limit: str,
) -> None:
    monkeypatch.setattr("anespec.validate.page.extras.has_extras", lambda *_: True)
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    other = exactness(copy, "full", not holds, "openvino")
    set_exactness(copy, other, exactness(copy, "full", holds))
    if limit:
        chosen = ("--gate", "quality", "--quality", text, "--quality-tokens", 30)
        ask(copy, *chosen, "--max-kl", 0 if limit == "exceeded" else 100)
    gates = [word for gate in asked for word in ("--gate", gate)]
    facts = requires_agreement(copy, *gates, "--quick")
    found = {gate["name"]: gate for gate in facts["gates"]}
    assert found.keys() == (set(asked) or set(GATES))
    if not asked:
        quality = {"": "reported", "kept": "pass", "exceeded": "fail"}[limit]
        assert (found["quality"]["standing"], found["quality"]["kept"]) == (quality, True)
    elif "exactness" not in asked:
        assert f"may speculate (on record: {'pass' if holds else 'fail'})" in facts["summary"]


@pytest.mark.fast_only("('full', True)-False")
@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize(
    "before", [("full", True), ("full", False), ("quick", True), ("quick", False)], ids=str
)
def test_a_quick_run_says_what_stands_after_it(
    judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[str, bool], now: bool
) -> None:
    """A full verdict stays where a quick one refutes nothing, and the runtime goes by that."""
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    set_exactness(copy, exactness(copy, *before))

    def measured(artifact: Artifact, *_: object) -> ExactnessVerdict:
        verdict = exactness(copy, "quick", now)
        artifact.record_verdict(ExactnessFile, verdict)
        return verdict

    monkeypatch.setattr("anespec.validate.gates.exactness_of", measured)
    facts = requires_agreement(copy, "--quick", "--again", "--gate", "exactness")
    (recorded,) = Artifact(copy).read_verdicts(ExactnessFile).verdicts
    (gate,) = facts["gates"]
    assert (gate["standing"], gate["form"]) == (recorded.standing, recorded.form)
    assert bool(gate["warnings"]) is (recorded.form == "full")


def test_a_gate_that_could_not_be_asked_is_no_finding_of_the_run(
    judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")

    def broken(*_: object, **__: object) -> None:
        raise GoldenGateError("it broke")

    monkeypatch.setattr("anespec.validate.gates.golden_gate", broken)
    error = ask(copy, "--again", "--gate", "golden", "--json").exception
    assert isinstance(error, GoldenGateError)
    summary = str(error.facts["summary"])
    assert (
        "m.anespec was not tested on whether it computes what llama.gguf means (on record: pass)" in summary
    )


@pytest.mark.usefixtures("nothing_runs")
def test_residency_that_is_required_is_told_alike(judged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged, tmp_path / "m.anespec")
    error = ask(copy, "--require-residency", "--quick", "--json").exception
    assert isinstance(error, AnespecError)
    assert error.exit_code == 11
    assert error.facts["standing"] == "fail"
    assert "shards on the Neural Engine, where all are required" in str(error.facts["summary"])
    html = (copy / "report.html").read_text("utf-8")
    assert re.search(r'class="red" href="#residency"', html)
