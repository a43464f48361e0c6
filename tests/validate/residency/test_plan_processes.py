"""Plans are made in other processes: what ends one is the refusal of its shard, and the others go on."""

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from converting import build
from plans import StandInCoreML, all_but, everything_on
from standin_core_ml import stand_in
from swift_build import built_worker
from tiny_model import TinyModel, write_gguf

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.residency import Device, Placement, ResidencyVerdict
from anespec.manifests.schema import Shapes, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.mil_package import Operation
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.system.errors import AnespecError, ResidencyGateError
from anespec.validate.kept import kept_residency
from anespec.validate.residency import compute_plan
from anespec.validate.residency.compute_plan import neural_engine, plan_caveats
from anespec.validate.residency.coremltools_plan import PlanningTools
from anespec.validate.residency.gate import require_residency, residency_gate
from anespec.validate.residency.plan_process import ChildPlans
from anespec.validate.residency.shard_view import has_device, view_package
from anespec.validate.residency.worker_plan import WorkerPlans

PLACING = all_but(Device.CPU, "layer_0_down")


def silent(note: str) -> None:
    """No progress is shown."""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = TinyModel(d=64, heads=4, kv_heads=2, head_dim=16, ff=128, layers=1)
    return write_gguf(tmp_path_factory.mktemp("plans") / "tiny.gguf", sizes)


@pytest.fixture
def artifact(gguf: Path, tmp_path: Path) -> Artifact:
    return Artifact(build(gguf, tmp_path / "m.anespec", target=Target.MAC).path)


def judged(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, how: str, words: str = "", seconds: float = 60
) -> ResidencyVerdict:
    monkeypatch.setenv("DYING", how)
    monkeypatch.setenv("WORDS", words)
    return residency_gate(artifact, silent, ChildPlans("dying_plans", seconds))


@pytest.mark.fast_only(
    "9--the process was killed, most likely for memory", "11--Core ML crashed \\\\(crash\\\\)"
)
@pytest.mark.parametrize(
    ("how", "words", "sentence"),
    [
        (str(int(signal.SIGABRT)), "std::bad_cast", "a function with states has EnumeratedShapes"),
        (str(int(signal.SIGSEGV)), "", r"Core ML crashed \(crash\)"),
        (str(int(signal.SIGKILL)), "", "the process was killed, most likely for memory"),
        ("hang", "", "Core ML neither finished nor failed in time"),
    ],
)
def test_a_death_names_its_shard_and_the_others_go_on(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, how: str, words: str, sentence: str
) -> None:
    verdict = judged(artifact, monkeypatch, how, words, 0.5 if how == "hang" else 60)
    assert [shard.placement for shard in verdict.shards] == [Placement.REFUSED, Placement.ANE]
    with pytest.raises(ResidencyGateError, match=rf"1 of 2 shards .* first shards/layer_00\S*: {sentence}"):
        require_residency(verdict)


def test_what_may_pass_is_asked_again_and_what_lasts_is_kept(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(artifact, monkeypatch, str(int(signal.SIGKILL)))
    assert kept_residency(artifact, ChildPlans()) is None
    lasting = judged(artifact, monkeypatch, str(int(signal.SIGSEGV)))
    assert kept_residency(artifact, ChildPlans()) == lasting


def test_a_process_that_cannot_ask_is_no_refusal(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnespecError, match=r"layer_00.*made no plan of it .*the library is not installed"):
        judged(artifact, monkeypatch, "fail")


@pytest.mark.slow
def test_a_real_process_makes_the_plan_that_this_one_would(artifact: Artifact) -> None:
    shard = artifact.manifest.shards[0]
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        here = PlanningTools().plan(artifact, shard)
    assert here.operations
    assert ChildPlans("planning_child").plan(artifact, shard) == here


def told(operations: Iterable[Operation]) -> list[dict[str, Any]]:
    """Operations as the worker's stand-in for Core ML reads them, placed by PLACING."""
    found = []
    for op in operations:
        name = op.outputs[0] if op.outputs else next(iter(op.inputs["input"]))
        one: dict[str, Any] = {"operator": op.kind if op.kind == "const" else f"ios18.{op.kind}"}
        one |= {"inputs": {key: list(names) for key, names in op.inputs.items()}, "outputs": list(op.outputs)}
        if has_device(op.kind):
            where = PLACING(op.kind, name).value
            one |= {"device": where, "supported": ["cpu", where], "cost": 0.01}
        found.append(one | {"blocks": [told(block) for block in op.blocks]})
    return found


@pytest.fixture(scope="session")
def binary() -> Path:
    return built_worker()


@pytest.fixture
def worker(binary: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerProgram:
    """The real one, over the stand-in for Core ML; it loads nothing here."""
    monkeypatch.setenv("ANESPEC_STANDIN_PYTHON", sys.executable)
    return WorkerProgram((str(binary),), "by hand", compared=False)


def planned_by_file(artifact: Artifact, patch: pytest.MonkeyPatch, path: Path) -> None:
    """Have the stand-in plan the first shard so, whatever it is asked about."""
    package = artifact.shard_path(artifact.manifest.shards[0])
    view = view_package(package, "", "", 1)
    functions = [{"name": f.name, "operations": told(f.function.operations)} for f in view.functions]
    path.write_text(json.dumps({"functions": functions}))
    patch.setenv("ANESPEC_STANDIN_PLAN", str(path))


@pytest.mark.fast_only("functions")
@pytest.mark.parametrize("shapes", [Shapes.RANGE, Shapes.FUNCTIONS])
def test_the_worker_makes_the_plan_that_coremltools_makes(
    gguf: Path, tmp_path: Path, worker: WorkerProgram, monkeypatch: pytest.MonkeyPatch, shapes: Shapes
) -> None:
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", target=Target.MAC, shapes=shapes).path)
    planned_by_file(artifact, monkeypatch, tmp_path / "plan.json")
    shard = artifact.manifest.shards[0]
    found = WorkerPlans(worker).plan(artifact, shard)
    assert found == StandInCoreML(PLACING).plan(artifact, shard)
    assert [function.rows for function in found.functions] == ([4, 64] if shapes is Shapes.FUNCTIONS else [1])
    where = WorkerPlans(worker).circumstances(artifact)
    assert (where.backend, where.library_version[:23]) == ("worker", "anespec-worker by hand,")
    # What it compiled is what the backend loads.
    assert len(list((artifact.root / "compiled").glob("*.mlmodelc"))) == 1


@pytest.mark.fast_only("fault3-the process was killed", "fault1-the plan could not be built")
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"at": "plan", "action": "kill"}, "the process was killed"),
        ({"at": "plan", "action": "fail", "code": -14, "text": "no plan"}, "the plan could not be built"),
        (
            {"at": "compile", "action": "fail", "text": "ANECCompile() FAILED, 11"},
            "the Neural Engine's compiler",
        ),
        ({"at": "compile", "action": "kill"}, "the process was killed"),
    ],
)
def test_what_the_worker_meets_is_its_shard_s_refusal(
    artifact: Artifact,
    worker: WorkerProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, object],
    sentence: str,
) -> None:
    planned_by_file(artifact, monkeypatch, tmp_path / "plan.json")
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps([fault | {"path": "layer_00"}]))
    monkeypatch.setenv("ANESPEC_STANDIN_FAULTS", str(faults))
    verdict = residency_gate(artifact, silent, WorkerPlans(worker))
    assert [shard.placement for shard in verdict.shards] == [Placement.REFUSED, Placement.MIXED]
    assert verdict.shards[0].refusal is not None
    assert verdict.shards[0].refusal.startswith(sentence)


def program(code: str) -> WorkerProgram:
    return WorkerProgram((sys.executable, "-I", "-S", "-c", code), "script", compared=False)


COMPILES = (
    "import os, sys, time\n"
    "verb, path, *rest = sys.argv[1:]\n"
    "if verb == 'compile': p = rest[0] + '/m.mlmodelc'; os.mkdir(p); print(p); sys.exit()\n"
)


def test_a_worker_that_hangs_or_says_nonsense_is_told_of(artifact: Artifact) -> None:
    shard = artifact.manifest.shards[0]
    hanging = WorkerPlans(program("import time; time.sleep(60)"), seconds=0.3).plan(artifact, shard)
    assert hanging.refusal is not None
    assert hanging.refusal.startswith("Core ML neither finished nor failed in time")
    for said in ("print('{}')", "print('no JSON')", 'print(\'{"shard": "a", "sha256": "b"}\')'):
        with pytest.raises(AnespecError, match=r"is not valid .*anespec worker build --again"):
            WorkerPlans(program(COMPILES + said)).plan(artifact, shard)
    with pytest.raises(AnespecError, match="has no command plan; build it again"):
        WorkerPlans(program(COMPILES + "sys.exit(64)")).plan(artifact, shard)


def test_a_worker_plans_where_it_was_built_and_coremltools_elsewhere(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_plan, "has_neural_engine", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ANESPEC_WORKER", raising=False)
    assert isinstance(neural_engine(), ChildPlans)
    (tmp_path / "worker").touch()
    monkeypatch.setenv("ANESPEC_WORKER", os.fspath(tmp_path / "worker"))
    assert isinstance(neural_engine(), WorkerPlans)


def test_a_plan_of_a_range_says_what_it_leaves_open(artifact: Artifact) -> None:
    ranges = artifact.manifest.model_copy(update={"reshape_hint": ReshapeHint.FREQUENT})
    static = ranges.model_copy(update={"shapes": Shapes.STATIC})
    verdict = residency_gate(artifact, silent, StandInCoreML(everything_on(Device.ANE)))
    widths, hint = plan_caveats(ranges, verdict)
    assert "passes of 1 row, the default shape, and not passes of 4;" in widths
    assert "`anespec worker build`" in hint
    assert plan_caveats(static, verdict) == ()
    assert plan_caveats(ranges.model_copy(update={"reshape_hint": ReshapeHint.NONE}), verdict) == (widths,)
    by_worker = verdict.circumstances.model_copy(update={"backend": "worker"})
    assert plan_caveats(ranges, verdict.model_copy(update={"circumstances": by_worker})) == (widths,)
    assert plan_caveats(ranges, residency_gate(artifact, silent)) == ()
