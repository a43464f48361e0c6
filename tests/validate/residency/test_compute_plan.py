"""The macOS half, over stand-ins with coremltools' own classes: from compiling to replaying a record."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from converting import build
from plans import (
    Placing,
    StandInCoreML,
    all_but,
    everything_on,
    plan_of,
    structure_block,
    structure_op,
)
from tiny_model import TinyModel, write_gguf

from anespec.manifests.graph_choices import RangeDefault
from anespec.manifests.notes import LARGEST_JSON
from anespec.manifests.residency import (
    Device,
    FunctionPlan,
    Placement,
    Plan,
    PlanSource,
    ResidencyFile,
    ResidencyVerdict,
    shape_text,
)
from anespec.manifests.schema import Shapes, Target
from anespec.manifests.store import Artifact, package_sha256
from anespec.system.errors import RequestError, ResidencyGateError, StorageError
from anespec.system.machine import system_build
from anespec.validate.residency.compute_plan import neural_engine
from anespec.validate.residency.coremltools_plan import measure_shard, read_plan
from anespec.validate.residency.gate import require_residency, residency_gate
from anespec.validate.residency.recorded_plan import record_plan, replay_plan
from anespec.validate.residency.shard_view import ShardView

D64 = TinyModel(d=64, heads=4, kv_heads=2, head_dim=16, ff=128, layers=1)
"""The sizes of the probe that was planned on the CPU."""


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("d64") / "d64.gguf", D64)


@pytest.fixture(scope="module")
def artifact(gguf: Path) -> Artifact:
    return Artifact(build(gguf, gguf.with_name("d64.anespec"), target=Target.MAC).path)


Measure = Callable[[Placing], ResidencyVerdict]


@pytest.fixture
def measure(artifact: Artifact, tmp_path: Path) -> Measure:
    """Measures with a stand-in, records the plan, replays the record, and finds both judged alike."""

    def run(placing: Placing) -> ResidencyVerdict:
        file = tmp_path / "plan.json"
        measured = residency_gate(artifact, lambda note: None, StandInCoreML(placing), record=file)
        replayed = residency_gate(artifact, lambda note: None, replay=file)
        assert (measured.source, replayed.source) == (PlanSource.MEASURED, PlanSource.REPLAYED)
        assert measured.shards == replayed.shards
        assert measured.passed is replayed.passed
        return measured

    return run


def test_all_on_the_neural_engine_is_green(measure: Measure) -> None:
    """Though the rules predict the CPU for so small a shard: what was measured decides."""
    verdict = measure(everything_on(Device.ANE))
    assert verdict.passed
    require_residency(verdict)
    layers, head = verdict.shards
    assert (layers.conv.ane, layers.conv.total) == (7, 7)
    assert layers.compute.off_ane == head.compute.off_ane == 0
    assert "small-shard" in {finding.rule for finding in verdict.findings}


def test_one_conv_on_the_cpu_is_red_and_named_with_shape_and_cost(measure: Measure) -> None:
    verdict = measure(all_but(Device.CPU, "layer_0_down"))
    assert [shard.placement for shard in verdict.shards] == [Placement.MIXED, Placement.ANE]
    assert (verdict.shards[0].conv.ane, verdict.shards[0].conv.cpu) == (6, 1)
    (named,) = verdict.shards[0].off_ane
    assert str(named) == "conv layer_0_down [1, 64, ?, 1] on cpu, estimated cost 0.01"
    assert named.layer == 0
    with pytest.raises(ResidencyGateError, match="layer_0_down"):
        require_residency(verdict)


def test_any_single_operation_off_the_neural_engine_is_red(measure: Measure) -> None:
    assert not measure(all_but(Device.GPU, "hidden")).passed
    assert not measure(all_but(Device.CPU, "k_0")).passed, "what writes a state is an operation too"
    silent = measure(all_but(Device.NONE, "layer_0_q"))
    assert not silent.passed, "an operation of which the plan says nothing is not known to be resident"
    assert silent.shards[0].conv.none == 1


def test_the_small_probe_as_it_was_measured_wholly_on_the_cpu(measure: Measure) -> None:
    verdict = measure(everything_on(Device.CPU))
    assert {shard.placement for shard in verdict.shards} == {Placement.CPU}
    with pytest.raises(ResidencyGateError, match="2 of 2 shards"):
        require_residency(verdict)


def test_totals_by_kind_and_layer_add_up(measure: Measure) -> None:
    shard = measure(all_but(Device.CPU, "layer_0_q")).shards[0]
    for parts in (shard.kinds, shard.layers):
        assert sum(part.devices.total for part in parts) == shard.compute.total
        assert sum(part.devices.cpu for part in parts) == 1
    assert {part.layer for part in shard.layers} == {0}, "the last operation, the output, is the layer's too"
    assert not any(part.kind.startswith("const") for part in shard.kinds)


def test_constants_are_left_out_and_nested_blocks_are_not() -> None:
    nested = structure_block(
        [structure_op("const", ["w"]), structure_op("conv", ["inside"]), structure_op("relu", ["after"])]
    )
    main = structure_block(
        [
            structure_op("const", ["a"]),
            structure_op("constexpr_blockwise_shift_scale", ["weight"]),
            structure_op("conv", ["layer_3_q"]),
            structure_op("cond", ["chosen"], blocks=[structure_block([]), nested]),
        ]
    )
    second = structure_block([structure_op("matmul", ["scores"])])
    plan = plan_of({"main": main, "second": second}, all_but(Device.CPU, "inside"), cost=None)
    functions = read_plan(plan, ShardView("s", "0", 4, False, (), 0))
    found = [(f.name, op.kind, op.name, op.device) for f in functions for op in f.operations]
    assert found == [
        ("main", "conv", "layer_3_q", Device.ANE),
        ("main", "cond", "chosen", Device.ANE),
        ("main", "conv", "inside", Device.CPU),
        ("main", "relu", "after", Device.ANE),
        ("second", "matmul", "scores", Device.ANE),
    ]
    assert functions[0].operations[2].supported == (Device.CPU, Device.CPU)
    assert functions[0].operations[2].cost is None


@pytest.mark.parametrize("shapes", [Shapes.RANGE, Shapes.STATIC])
def test_the_shipped_package_itself_is_planned(gguf: Path, tmp_path: Path, shapes: Shapes) -> None:
    artifact = Artifact(
        build(gguf, tmp_path / "eight.anespec", target=Target.MAC, block=8, shapes=shapes).path
    )
    coreml = StandInCoreML(everything_on(Device.ANE))
    file = tmp_path / "plan.json"
    assert residency_gate(artifact, lambda note: None, coreml, record=file).passed
    shards = artifact.manifest.shards
    assert coreml.compiled == [artifact.root / shard.path for shard in shards]
    plan = Plan.model_validate_json(file.read_text())
    rows = 1 if shapes is Shapes.RANGE else 8
    assert {(f.name, f.rows) for shard in plan.shards for f in shard.functions} == {("main", rows)}


def test_a_range_with_another_default_than_its_manifest_s_is_not_planned(gguf: Path, tmp_path: Path) -> None:
    """Core ML plans a package at its default shape."""
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", target=Target.MAC, range_default="block").path)
    claimed = artifact.manifest.model_copy(update={"range_default": RangeDefault.ONE})
    shard = claimed.shards[0]
    coreml = StandInCoreML(everything_on(Device.ANE))
    plan = measure_shard(claimed, shard, artifact.shard_path(shard), coreml)
    assert plan.refusal == "its default shape is of T = 4, not 1 as its manifest says; convert again"
    assert not coreml.compiled


@pytest.mark.slow
def test_every_function_has_a_plan_of_its_own(gguf: Path, tmp_path: Path) -> None:
    """A plan of the shipped package says nothing of functions other than its default."""
    artifact = Artifact(
        build(gguf, tmp_path / "m.anespec", target=Target.MAC, shapes=Shapes.FUNCTIONS, context=128).path
    )
    file = tmp_path / "plan.json"
    verdict = residency_gate(
        artifact, lambda note: None, StandInCoreML(everything_on(Device.ANE)), record=file
    )
    assert verdict.passed
    assert [(f.name, f.rows) for f in verdict.shards[0].functions] == [("rows_4", 4), ("rows_64", 64)]
    (one, other) = (f.devices for f in verdict.shards[0].functions)
    assert one == other
    assert one.total + other.total == verdict.shards[0].compute.total
    plan = Plan.model_validate_json(file.read_text())
    (down,) = (op for op in plan.shards[0].functions[1].operations if op.name == "layer_0_down")
    assert shape_text(down.shapes[0]) == "[1, 64, 1, 64]", "wide functions have their rows last"
    assert residency_gate(artifact, lambda note: None, replay=file).shards == verdict.shards
    for lacking in plan.shards[0].functions:
        less = plan.shards[0].model_copy(update={"functions": (lacking,)})
        record_plan(plan.model_copy(update={"shards": (less, *plan.shards[1:])}), file)
        with pytest.raises(RequestError, match="has other functions"):
            replay_plan(file, artifact)
    for shard in artifact.manifest.shards:
        assert package_sha256(artifact.root / shard.path) == shard.sha256


def test_measuring_leaves_the_artifact_alone(artifact: Artifact, measure: Measure) -> None:
    measure(everything_on(Device.ANE))
    for shard in artifact.manifest.shards:
        assert package_sha256(artifact.root / shard.path) == shard.sha256


def test_a_refused_shard_is_red_with_a_sentence(artifact: Artifact) -> None:
    coreml = StandInCoreML(everything_on(Device.ANE), refuse={"attn_mask": "Error plan build: -14."})
    verdict = residency_gate(artifact, lambda note: None, coreml)
    assert [shard.placement for shard in verdict.shards] == [Placement.REFUSED, Placement.ANE]
    assert verdict.shards[0].refusal is not None
    assert "too large" in verdict.shards[0].refusal
    with pytest.raises(ResidencyGateError, match="-14"):
        require_residency(verdict)


def test_a_prediction_is_labelled_and_recorded(artifact: Artifact) -> None:
    verdict = residency_gate(artifact, lambda note: None)
    assert verdict.source is PlanSource.PREDICTED
    kept = artifact.read_verdicts(ResidencyFile)
    assert kept.find(verdict.circumstances) == verdict
    assert verdict.circumstances.backend == "rules"
    assert verdict.circumstances.machine == "any"


def test_a_replayed_verdict_does_not_replace_the_measured_one(artifact: Artifact, measure: Measure) -> None:
    measured = measure(everything_on(Device.ANE))
    kept = artifact.read_verdicts(ResidencyFile).find(measured.circumstances)
    assert kept is not None
    assert kept.source is PlanSource.MEASURED


def test_what_was_measured_names_machine_and_versions(measure: Measure) -> None:
    where = measure(everything_on(Device.ANE)).circumstances
    assert where.backend == "coreml"
    assert "coremltools" in where.library_version
    assert system_build() in where.library_version
    assert where.machine != "any"


def recorded(artifact: Artifact, path: Path) -> Path:
    residency_gate(artifact, lambda note: None, StandInCoreML(everything_on(Device.ANE)), record=path)
    return path


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda plan: plan["shards"][0].update(sha256="f" * 64), "another artifact"),
        (lambda plan: plan["shards"][0].update(shard="shards/other.mlpackage"), "another artifact"),
        (lambda plan: plan["shards"].pop(), "another artifact"),
        (lambda plan: plan["shards"].append(plan["shards"][0]), "another artifact"),
        (lambda plan: plan.update(block=5), "T = 5"),
        (lambda plan: plan["shards"][0]["functions"][0].update(rows=5), "5 rows of main"),
        (lambda plan: plan["shards"][0].update(functions=[]), "has other functions"),
        (lambda plan: plan.update(source="predicted"), "holds a prediction"),
        (lambda plan: plan.update(shards=3), "not a recorded plan"),
    ],
    ids=["sha256", "name", "one less", "one twice", "block", "rows", "functions", "predicted", "no shards"],
)
def test_a_plan_of_something_else_is_refused(
    artifact: Artifact, tmp_path: Path, change: Callable[[dict[str, object]], None], complaint: str
) -> None:
    path = recorded(artifact, tmp_path / "plan.json")
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))
    with pytest.raises(RequestError, match=complaint) as caught:
        replay_plan(path, artifact)
    assert "--record-plan" in str(caught.value)


def test_files_that_are_no_plan_are_refused(artifact: Artifact, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        replay_plan(tmp_path / "absent.json", artifact)
    path = tmp_path / "plan.json"
    for content in (
        b"",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b"[" * 100_000,
        b'{"source": "\\ud800"}',
        b'{"\\u001b[2J": 1}',
    ):
        path.write_bytes(content)
        with pytest.raises(RequestError, match="not a recorded plan") as caught:
            replay_plan(path, artifact)
        assert str(caught.value).isprintable()


def test_what_is_no_file_or_far_too_large_is_no_plan(artifact: Artifact, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    os.mkfifo(path)
    with pytest.raises(StorageError, match="is a pipe or a device"):
        replay_plan(path, artifact)
    path.unlink()
    path.touch()
    os.truncate(path, LARGEST_JSON + 1)
    with pytest.raises(StorageError, match="is larger than"):
        replay_plan(path, artifact)


def test_a_plan_without_operations_proves_nothing(artifact: Artifact, tmp_path: Path) -> None:
    path = recorded(artifact, tmp_path / "plan.json")
    plan = Plan.model_validate_json(path.read_text())
    none = (FunctionPlan(name="main", operations=()),)
    empty = plan.model_copy(
        update={"shards": tuple(shard.model_copy(update={"functions": none}) for shard in plan.shards)}
    )
    record_plan(empty, path)
    verdict = residency_gate(artifact, lambda note: None, replay=path)
    assert {shard.placement for shard in verdict.shards} == {Placement.EMPTY}
    with pytest.raises(ResidencyGateError, match="no operations"):
        require_residency(verdict)


def test_the_form_of_a_recorded_plan_stays(artifact: Artifact) -> None:
    """Written out, since other tools write this file too."""
    text = """{"source": "measured", "block": 4,
      "circumstances": {"backend": "coreml", "library_version": "coremltools 9.0, macOS 26.0",
                        "machine": "Darwin arm64 Apple M4", "threads": 1, "artifact": "0"},
      "shards": [{"shard": "shards/a.mlpackage", "sha256": "0", "functions": [{"name": "main", "operations": [
        {"kind": "conv", "name": "layer_0_q", "shapes": [[1, 64, 4, 1]], "device": "cpu",
         "supported": ["cpu", "ane"], "cost": 0.5, "layer": 0}]}]},
        {"shard": "shards/b.mlpackage", "sha256": "1", "refusal": "the plan could not be built"}]}"""
    plan = Plan.model_validate_json(text)
    assert str(plan.shards[0].operations[0]) == "conv layer_0_q [1, 64, 4, 1] on cpu, estimated cost 0.5"
    assert json.loads(plan.model_dump_json(exclude_defaults=True)) == json.loads(text)


def test_only_core_ml_makes_a_plan_to_record(artifact: Artifact, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="on a Mac"):
        residency_gate(artifact, lambda note: None, record=tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_core_ml_is_not_asked_about_an_artifact_for_the_cpu(gguf: Path, tmp_path: Path) -> None:
    artifact = Artifact(build(gguf, tmp_path / "cpu.anespec", target=Target.CPU).path)
    coreml = StandInCoreML(everything_on(Device.ANE))
    verdict = residency_gate(artifact, lambda note: None, coreml)
    assert verdict.source is PlanSource.PREDICTED
    assert not coreml.compiled


def test_there_is_no_neural_engine_but_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert neural_engine() is None
