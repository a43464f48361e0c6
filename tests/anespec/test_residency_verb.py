"""`validate` and the residency gate: predicted here, measured on a Mac, replayed anywhere."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from commands import run

from anespec.embedded import model_path
from anespec.system.errors import ResidencyGateError

DOCS = Path(__file__).resolve().parents[2] / "docs" / "residency.md"


@pytest.fixture(scope="module")
def mac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model for the Neural Engine."""
    path = tmp_path_factory.mktemp("mac") / "embedded.anespec"
    assert run("convert", model_path(), "-o", path, "--target", "mac", "--context", 128).code == 0
    return path


@pytest.fixture(scope="module")
def tiny_mac(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is materialised within a second, for the Neural Engine."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.anespec"
    assert run("convert", gguf, "-o", path, "--target", "mac", "--context", 64).code == 0
    return path


def residency(facts: dict[str, object]) -> dict[str, object]:
    gates = facts["gates"]
    assert isinstance(gates, list)
    (found,) = (gate for gate in gates if gate["name"] == "residency")
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_a_shard_that_coremltools_opened_is_the_shard_that_was_converted(tiny_mac: Path) -> None:
    from anespec.convert.graph.builder import ct

    for package in (tiny_mac / "shards").iterdir():
        ct.utils.load_spec(str(package))
        ct.models.MLModel(str(package), skip_model_load=True)
    for options in ((), ("--verify",)):
        outcome = run("validate", tiny_mac, "--gate", "residency", "--gate", "golden", *options)
        assert outcome.code == 0, outcome.err


@pytest.mark.slow
def test_a_prediction_is_shown_labelled_and_does_not_fail_the_run(mac: Path) -> None:
    outcome = run("validate", mac, "--gate", "residency")
    assert outcome.code == 0, outcome.err
    assert "predicted cpu" in outcome.out
    assert "small-shard" in outcome.out
    assert "resident" not in outcome.out.replace("residency", "").replace("measured resident", "")
    assert "--require-residency" in outcome.out


@pytest.mark.slow
def test_a_trained_model_is_judged_alike(stories_mac: Path) -> None:
    assert run("validate", stories_mac, "--gate", "residency").code == 0
    required = run("validate", stories_mac, "--gate", "residency", "--require-residency")
    assert required.code == 11
    assert "small-shard" in required.out


@pytest.mark.slow
def test_a_required_prediction_fails_the_run(mac: Path) -> None:
    outcome = run("validate", mac, "--gate", "residency", "--require-residency", "--json")
    assert outcome.code == 11
    facts = outcome.json
    assert "predicted" in facts["error"]
    assert residency(facts)["standing"] == "fail"
    assert facts["standing"] == "fail"


def test_json_has_all(mac: Path) -> None:
    facts = run("validate", mac, "--gate", "residency", "--json").json
    gate = residency(facts)
    assert facts["standing"] == "reported", "a prediction decides nothing"
    assert (gate["standing"], gate["decides"], gate["source"]) == ("reported", False, "predicted")
    figures = gate["figures"]
    assert isinstance(figures, dict)
    assert {shard["placement"] for shard in figures["shards"]} == {"cpu"}
    assert all(
        shard["compute"]["cpu"] == sum(k["devices"]["cpu"] for k in shard["kinds"])
        for shard in figures["shards"]
    )
    assert {finding["rule"] for finding in figures["findings"]} >= {"small-shard", "narrow-last-axis"}
    assert all(finding["mend"] for finding in figures["findings"])
    recorded = json.loads((mac / "gates" / "residency.json").read_text())["verdicts"]
    assert [verdict["source"] for verdict in recorded] == ["predicted"]


@pytest.mark.slow
def test_for_an_artifact_for_the_cpu_a_note_is_enough(artifact: Path) -> None:
    outcome = run("validate", artifact, "--gate", "residency")
    assert outcome.code == 0
    headline, note, _, page, summary = outcome.out.splitlines()
    assert headline.startswith("residency gate: reported (")
    assert "--target cpu" in note
    assert "report.html" in page
    assert summary.startswith("On openvino with ")
    assert run("validate", artifact, "--gate", "residency", "--require-residency").code == 11


@pytest.mark.slow
def test_residency_runs_first_of_all_gates(artifact: Path) -> None:
    outcome = run("validate", artifact, "--quick", "--threads", 1, "--json")
    assert outcome.code == 0, outcome.err
    assert [gate["name"] for gate in outcome.json["gates"]] == ["residency", "golden", "exactness"]


def test_a_rule_is_explained() -> None:
    outcome = run("validate", "--explain", "small-shard")
    assert outcome.code == 0
    for word in ("grade     B", "source", "looks at", "verdict   fail", "fix", "--topology"):
        assert word in outcome.out
    (fact,) = run("validate", "--explain", "small-shard", "--json").json["rules"]
    assert fact["severity"] == "fail"


def test_all_rules_are_listed_a_line_each() -> None:
    lines = run("validate", "--explain", "all").out.splitlines()
    facts = run("validate", "--explain", "all", "--json").json["rules"]
    assert [line.split(" (")[0] for line in lines] == [fact["id"] for fact in facts]


def test_an_unknown_rule_names_those_that_are_near() -> None:
    outcome = run("validate", "--explain", "small-shards")
    assert outcome.code == 2
    assert "did you mean small-shard" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("x.anespec", "--gate", "golden", "--require-residency"),
        ("x.anespec", "--gate", "golden", "--replay-plan", "plan.json"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert run("validate", *arguments).code == 2


@pytest.mark.slow
def test_a_plan_cannot_be_recorded_here(mac: Path, tmp_path: Path) -> None:
    outcome = run("validate", mac, "--gate", "residency", "--record-plan", tmp_path / "plan.json")
    assert outcome.code == 7
    assert outcome.ends_in_one_sentence()
    assert not list(tmp_path.iterdir())


def on_a_mac(monkeypatch: pytest.MonkeyPatch, off_ane: tuple[str, ...], *arguments: object) -> Result:
    """Run the verb in this process, where Core ML stands in."""
    from plans import StandInCoreML, all_but, everything_on

    from anespec.cli.verbs.validate import validate
    from anespec.manifests.residency import Device

    placing = all_but(Device.CPU, *off_ane) if off_ane else everything_on(Device.ANE)
    monkeypatch.setattr(
        "anespec.validate.residency.compute_plan.neural_engine", lambda: StandInCoreML(placing)
    )
    return CliRunner().invoke(validate, ["--gate", "residency", *map(str, arguments)])


@pytest.mark.slow
def test_on_a_mac_the_plan_decides_and_is_recorded_and_replayed(
    tiny_mac: Path, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    green, red = tmp_path / "green.json", tmp_path / "red.json"
    measured = on_a_mac(monkeypatch, (), tiny_mac, "--record-plan", green)
    assert measured.exit_code == 0, measured.output
    assert "measured ane" in measured.output
    failing = on_a_mac(monkeypatch, ("layer_0_down",), tiny_mac, "--record-plan", red)
    assert isinstance(failing.exception, ResidencyGateError)
    assert re.search(r"conv layer_0_down \[1, \d+, \?, 1\] on cpu, estimated cost", failing.output)
    replayed = run("validate", tiny_mac, "--gate", "residency", "--replay-plan", green)
    assert replayed.code == 0, replayed.err
    assert "replayed ane" in replayed.out
    outcome = run("validate", tiny_mac, "--gate", "residency", "--replay-plan", red)
    assert outcome.code == 11
    assert "layer_0_down" in outcome.err
    other = run("validate", artifact, "--gate", "residency", "--replay-plan", green)
    assert other.code == 7
    assert other.ends_in_one_sentence()
    assert "another artifact" in other.err


def test_the_documented_rules_are_the_rules() -> None:
    """Every row of the two tables in docs/residency.md says what `--explain` says."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOCS.read_text().splitlines()
        if re.match(r"\| `[a-z0-9-]+` \|", line) and line.count("|") > 3
    ]
    documented = {row[0].strip("`"): row[1:] for row in cells}
    facts = {fact["id"]: fact for fact in run("validate", "--explain", "all", "--json").json["rules"]}
    assert documented.keys() == facts.keys()
    for name, row in documented.items():
        fact = facts[name]
        expected = [fact["grade"], fact["fact"], fact["source"]]
        if fact["severity"] is not None:
            expected[1:1] = [fact["severity"]]
        assert row == expected, name


def test_a_text_that_cannot_be_read_ends_the_run_before_any_gate(artifact: Path, tmp_path: Path) -> None:
    judged = {path: path.read_bytes() for path in (artifact / "gates").glob("*")}
    outcome = run("validate", artifact, "--gate", "residency", "--quality", tmp_path / "none.txt")
    assert outcome.code == 6
    assert outcome.is_one_sentence()
    assert {path: path.read_bytes() for path in (artifact / "gates").glob("*")} == judged
