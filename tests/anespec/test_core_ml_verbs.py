"""The whole command line as on a Mac: coremltools' own classes, with Core ML's native part stood in for."""

import json
from pathlib import Path
from typing import Any

import pytest
from chatty_model import write_chatty
from click.testing import CliRunner, Result
from core_ml_faults import Fault, plan_faults
from standin_core_ml import COMMAND, MACOS, NativeModel, stand_in

from anespec.cli.main import cli
from anespec.runtime.backends.coreml import load_probe
from anespec.system.errors import AnespecError, ArtifactError
from anespec.validate.residency.coremltools_plan import PlanningTools

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

PROMPT = "def area(self):"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac with a Neural Engine, also for the processes that try shards."""
    stand_in(monkeypatch)
    # A process that plans knows no stand-in; tests/validate/residency/test_plan_processes.py starts some.
    monkeypatch.setattr("anespec.validate.residency.compute_plan.neural_engine", PlanningTools)
    monkeypatch.setattr("anespec.runtime.backends.coreml.probing.child_command", lambda _: COMMAND)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for the Neural Engine, made by the verb, in two layer shards and two heads."""
    folder = tmp_path_factory.mktemp("mac")
    path = folder / "m.anespec"
    options = ("--target", "mac", "--context", "256", "--weights", "fp16", "--head-shards", "2")
    outcome = verb("convert", write_chatty(folder / "m.gguf"), "-o", path, *options)
    assert outcome.exit_code == 0, outcome.output
    return path


def verb(*arguments: object, answer: str | None = None) -> Result:
    """A verb in this process, which spares the start of another."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=answer)


def generated(artifact: Path, *options: object) -> dict[str, Any]:
    outcome = verb("generate", artifact, "-p", PROMPT, "-n", 40, "--json", "--threads", 1, *options)
    assert outcome.exit_code == 0, outcome.output
    facts = json.loads(outcome.stdout)
    assert isinstance(facts, dict)
    return facts


@pytest.mark.slow
@pytest.mark.usefixtures("mac")
def test_a_mac_validates_and_generates_on_core_ml_with_torchs_own_text(converted: Path) -> None:
    outcome = verb("validate", converted, "--quick", "--threads", 1, "--json")
    assert outcome.exit_code == 0, outcome.output
    gates = {gate["name"]: gate for gate in json.loads(outcome.stdout)["gates"]}
    assert {name: gate["standing"] for name, gate in gates.items()} == {
        "residency": "pass",
        "golden": "pass",
        "exactness": "pass",
    }
    assert gates["residency"]["source"] == "measured"
    verdicts = json.loads((converted / "gates" / "golden.json").read_text())["verdicts"]
    where = verdicts[0]["circumstances"]
    assert (where["backend"], where["threads"]) == ("coreml", 1)
    assert MACOS in where["library_version"]
    before = NativeModel.predictions
    fast = generated(converted)
    assert NativeModel.predictions > before
    assert sum(source["accepted"] for source in fast["drafts"].values()) > 0
    assert fast["passes"] < len(fast["output_ids"])
    plain = generated(converted, "--backend", "torch", "--drafter", "none")
    assert plain["passes"] >= len(plain["output_ids"])
    assert fast["output_ids"] == plain["output_ids"]


@pytest.mark.slow
@pytest.mark.usefixtures("mac")
def test_a_pass_that_core_ml_fails_in_costs_time_and_no_text(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A source that begins later would take passes, too.
    lookup = ("--drafter", "lookup")
    sound = generated(converted, *lookup)
    faults = (Fault("predict", "layers", 9, text="0x1d"), Fault("predict", "head_01", 5, text="-14"))
    for fault in faults:
        plan_faults(monkeypatch, fault)
        mended = generated(converted, *lookup)
        assert mended["output_ids"] == sound["output_ids"]
        assert mended["passes"] > sound["passes"]
    plan_faults(monkeypatch, Fault("predict", "layers", 9, strange=True))
    assert generated(converted, *lookup)["output_ids"] == sound["output_ids"]


@pytest.mark.slow
@pytest.mark.usefixtures("mac")
def test_a_shard_that_always_fails_ends_the_request_with_a_sentence(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated(converted)  # Its verdict is kept, so that what fails is the request and not a gate.
    plan_faults(monkeypatch, Fault("predict", "layers", 0, text="0x1d : inference error"))
    outcome = verb("generate", converted, "-p", PROMPT, "-n", 5)
    assert isinstance(outcome.exception, ArtifactError)
    assert "the Neural Engine failed while it ran (0x1d)" in str(outcome.exception)
    # Where it fails only once it is loaded, and its first passes are over.
    monkeypatch.setattr(load_probe, "run_first_passes", lambda *_: ())
    outcome = verb("generate", converted, "-p", PROMPT, "-n", 5)
    assert isinstance(outcome.exception, AnespecError)
    assert "lost its state 3 times" in str(outcome.exception)
    assert "the Neural Engine failed while it ran (0x1d)" in str(outcome.exception)


@pytest.mark.slow
@pytest.mark.usefixtures("mac")
def test_a_chat_answers_on_core_ml_as_on_torch(converted: Path) -> None:
    options = ("-n", 6, "--threads", 1, "--temperature", 0)
    answers = [
        verb("chat", converted, *options, "--backend", backend, answer="Hello\nAnd then?\n")
        for backend in ("coreml", "torch")
    ]
    assert all(outcome.exit_code == 0 for outcome in answers), answers[0].output
    assert answers[0].stdout == answers[1].stdout
    assert answers[0].stdout.strip()
