"""The router's ranks against a sort, and experts that libraries leave out against all of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import ArraySource
from graphs import program_of, reloaded
from numpy.typing import NDArray

from anespec.convert.families.family import Activation, LayerActivation
from anespec.convert.families.mixture import Gating
from anespec.convert.graph.builder import Var
from anespec.convert.graph.experts import (
    LatentExperts,
    MixtureInputs,
    MixturePlan,
    MixtureWeights,
    SharedExpert,
    expert_weights,
    mixture,
)
from anespec.convert.graph.mlp import MLPWeights, clamped_swiglu
from anespec.convert.graph.projection import Projection
from anespec.convert.weights.stored import DeferredWeight
from anespec.manifests.channel_layout import DECLARED
from anespec.manifests.schema import TensorSpec, WeightFormat
from anespec.runtime.backends.portable import experts, fusions
from anespec.runtime.backends.portable.openvino_cpu import experts as openvino_experts
from anespec.runtime.backends.portable.openvino_cpu import products
from anespec.runtime.backends.portable.openvino_cpu import runner as openvino
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.torch_cpu import runner as torch

D, WIDTH, EXPERTS, USED = 32, 24, 8, 3
X = TensorSpec(name="x", shape=(1, D, None, 1))
RUNNERS: dict[str, tuple[Any, str]] = {
    "torch": (torch, "TorchRunner"),
    "torch-flush": (torch, "FlushingRunner"),
    "openvino": (openvino, "OpenVINORunner"),
}
Rows = NDArray[np.float16]


def projection(rng: np.random.Generator, rows: int, columns: int, form: WeightFormat) -> Projection:
    values = rng.normal(scale=columns**-0.5, size=(rows, columns)).astype(np.float32)
    return Projection(DeferredWeight(ArraySource(values), form))


def weights(
    form: WeightFormat = WeightFormat.FP16,
    plan: MixturePlan | None = None,
    router: NDArray[np.float32] | None = None,
    bias: NDArray[np.float16] | None = None,
    gated: bool = True,
) -> MixtureWeights:
    rng = np.random.default_rng(0)
    plan = plan or MixturePlan(EXPERTS, USED, Gating.SOFTMAX, renormalised=True)
    routing = projection(rng, plan.experts, D, WeightFormat.FP16)
    if router is not None:
        routing = Projection(DeferredWeight(ArraySource(router), WeightFormat.FP16))

    def mlp() -> MLPWeights:
        gate = projection(rng, WIDTH, D, form) if gated else None
        return MLPWeights(gate, projection(rng, WIDTH, D, form), projection(rng, D, WIDTH, form))

    shared = SharedExpert(mlp(), projection(rng, 1, D, WeightFormat.FP16))
    return MixtureWeights(plan, routing, [mlp() for _ in range(plan.experts)], bias, shared)


def mixed(given: MixtureWeights, folder: Path, activation: LayerActivation = Activation.SILU) -> Program:
    def build(v: Mapping[str, Var]) -> Var:
        inputs = MixtureInputs(v["x"], v["x"], v["x"])
        return mixture(inputs, given, activation, DECLARED, 1e-5, "layer_0")

    shard = program_of(build, (X,), "out")
    return reloaded(shard, folder)


def run(runner: Any, rows: Rows, output: str = "out") -> Rows:
    found: Rows = runner.run({"x": np.ascontiguousarray(rows.T[None, :, :, None])})[output]
    return found[0, :, :, 0].T


def numbers(count: int = 64) -> Rows:
    return np.random.default_rng(1).normal(size=(count, D)).astype(np.float16)


@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize("gating", Gating)
@pytest.mark.parametrize("renormalised", [True, False])
@pytest.mark.parametrize("arithmetic", [True, False])
def test_the_chosen_are_the_largest_and_ties_go_to_lower_numbers(
    name: str, gating: Gating, renormalised: bool, arithmetic: bool, tmp_path: Path
) -> None:
    """Weights of experts, of which some have the same rows in the router and so equal scores."""
    rng = np.random.default_rng(3)
    router = rng.normal(scale=D**-0.5, size=(EXPERTS, D)).astype(np.float16).astype(np.float32)
    router[[5, 6]] = router[1]
    router[7] = router[2]
    plan = MixturePlan(EXPERTS, USED, gating, renormalised, arithmetic=arithmetic)
    given = weights(plan=plan, router=router)
    shard = program_of(lambda v: expert_weights(v["x"], given, DECLARED, "layer_0"), (X,), "out")
    module, kind = RUNNERS[name]
    rows = numbers()
    found = run(getattr(module, kind)(reloaded(shard, tmp_path), 1), rows).astype(np.float64)
    logits = rows.astype(np.float64) @ router.T.astype(np.float64)
    order = np.argsort(-logits.astype(np.float16), axis=1, kind="stable")[:, :USED]
    scores = 1 / (1 + np.exp(-logits)) if gating is Gating.SIGMOID else np.exp(logits)
    if gating is Gating.SOFTMAX:
        scores /= scores.sum(axis=1, keepdims=True)
    expected = np.zeros_like(scores)
    np.put_along_axis(expected, order, np.take_along_axis(scores, order, axis=1), axis=1)
    if renormalised:
        expected /= expected.sum(axis=1, keepdims=True)
    cut = np.sort(-logits, axis=1)[:, USED - 1 : USED + 1]
    clear = (np.diff(cut, axis=1)[:, 0] > 0.01) | (np.diff(cut, axis=1)[:, 0] == 0)
    assert clear.sum() > 40 and (np.diff(cut, axis=1) == 0).sum() > 5
    np.testing.assert_allclose(found[clear], expected[clear], atol=4e-3)
    assert ((found[clear] != 0) == (expected[clear] != 0)).all()


def test_a_selection_bias_chooses_and_does_not_weigh(tmp_path: Path) -> None:
    bias = np.zeros(EXPERTS, np.float16)
    bias[4] = 10
    plan = MixturePlan(EXPERTS, 1, Gating.SIGMOID, renormalised=False, scale=2.0)
    given = weights(plan=plan, bias=bias)
    shard = program_of(lambda v: expert_weights(v["x"], given, DECLARED, "layer_0"), (X,), "out")
    found = run(torch.TorchRunner(reloaded(shard, tmp_path), 1), numbers())
    assert (found[:, 4] > 0).all() and (found[:, 4] < 2).all() and not np.delete(found, 4, axis=1).any()


@pytest.mark.parametrize("name", RUNNERS)
def test_the_clamped_swiglu_is_bounded(name: str, tmp_path: Path) -> None:
    """Both projections far beyond their bounds, in all combinations."""
    gate, up = (part.ravel() for part in np.meshgrid(np.linspace(-40, 40, 33), np.linspace(-40, 40, 33)))
    inputs = tuple(TensorSpec(name=part, shape=(1, len(gate), None, 1)) for part in ("gate", "up"))
    shard = program_of(lambda v: clamped_swiglu(v["gate"], v["up"]), inputs, "out")
    module, kind = RUNNERS[name]
    runner = getattr(module, kind)(reloaded(shard, tmp_path), 1)
    given = {"gate": gate.astype(np.float16), "up": up.astype(np.float16)}
    rows = {part: np.ascontiguousarray(values.reshape(1, -1, 1, 1)) for part, values in given.items()}
    found = runner.run(rows)["out"].ravel().astype(np.float64)
    bounded = np.minimum(given["gate"].astype(np.float64), 7)
    expected = bounded / (1 + np.exp(-1.702 * bounded)) * (np.clip(given["up"].astype(np.float64), -7, 7) + 1)
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=2e-3)


TORCH = [name for name in RUNNERS if name != "openvino"]
KEPT = {
    WeightFormat.FP16: {"<Type: 'float32'>"},
    WeightFormat.INT8_CHANNEL: {"<Type: 'int8_t'>"},
    WeightFormat.INT8_BLOCK32: {"<Type: 'int8_t'>"},
    WeightFormat.INT4_BLOCK32: {"<Type: 'int4_t'>", "<Type: 'int8_t'>"},
    WeightFormat.LUT6: {"<Type: 'float32'>"},
}
"""The types in which OpenVINO keeps the weights; 24 columns have no blocks of 32."""


def unfused(monkeypatch: pytest.MonkeyPatch, name: str, program: Program) -> Any:
    """A runner of the graph as it is, which runs every expert on every row."""
    module, kind = RUNNERS[name]
    with monkeypatch.context() as patch:
        for fusing in (fusions, torch):
            patch.setattr(fusing, "fuse_experts", lambda program: program)
        return getattr(module, kind)(program, 1)


@pytest.mark.fast_only("lut6-torch-flush", "lut6-torch")
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("form", [WeightFormat.FP16, WeightFormat.INT8_CHANNEL, WeightFormat.LUT6])
def test_experts_left_out_change_no_bit(
    name: str, form: WeightFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every width but one, whose products take another kernel, against a pass with all experts."""
    program, rows = mixed(weights(form), tmp_path), numbers()
    module, kind = RUNNERS[name]
    lean, whole = getattr(module, kind)(program, 1), unfused(monkeypatch, name, program)
    (fused,) = [each for each in lean.program.operations if each.kind == experts.MIXTURE]
    assert len(fused.blocks) == EXPERTS
    expected = run(whole, rows)
    for width in (2, 3, 4, 7, 16, 64):
        parts = [run(lean, rows[first : first + width]) for first in range(0, len(rows), width)]
        found = np.concatenate([part for part in parts if len(part) > 1])
        assert (found == expected[: len(found)]).all(), width


def compiled_nodes(runner: Any, kind: str) -> list[Any]:
    """The nodes of a kind that OpenVINO's compiled model has."""
    operations = runner.compiled.get_runtime_model().get_ops()
    return [each for each in operations if each.get_rt_info()["layerType"].astype(str) == kind]


def grouped_products(runner: Any) -> list[Any]:
    """The products over pairs of a row and an expert that OpenVINO's compiled model has."""
    return compiled_nodes(runner, "GatherMatmul")


def assert_rows_keep_their_bits(lean: Any, rows: Rows, expected: Rows) -> None:
    """At every width but one, of which the router and the shared expert have other bits, and at any place."""
    for width in (2, 3, 4, 7, 16, 64):
        parts = [run(lean, rows[first : first + width]) for first in range(0, len(rows), width)]
        found = np.concatenate([part for part in parts if len(part) > 1])
        assert (found == expected[: len(found)]).all(), width
    order = np.random.default_rng(5).permutation(len(rows))
    assert (run(lean, rows[order]) == expected[order]).all()


@pytest.mark.parametrize("form", [WeightFormat.INT8_CHANNEL, WeightFormat.INT4_BLOCK32])
def test_experts_cut_apart_keep_a_rows_bits_at_every_width_and_place(
    form: WeightFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor without products that round rows to int8 they are not cut apart."""
    program, rows = mixed(weights(form, bias=np.full(EXPERTS, 0.5, np.float16)), tmp_path), numbers()
    asked: list[bool] = []

    def noted(*given: Any) -> bool:
        asked.append(products.multiplies_rows_alone(*given))
        return asked[-1]

    monkeypatch.setattr(openvino_experts, "multiplies_rows_alone", noted)
    lean, whole = openvino.OpenVINORunner(program, 1), unfused(monkeypatch, "openvino", program)
    assert asked
    assert len(compiled_nodes(lean, "If")) == (EXPERTS if all(asked) else 0)
    assert len(grouped_products(lean)) == (0 if all(asked) else 3)
    expected, close = run(lean, rows), run(whole, rows).astype(np.float32)
    np.testing.assert_allclose(expected, close, atol=0.03 * np.abs(close).max())
    assert_rows_keep_their_bits(lean, rows, expected)


@pytest.mark.fast_only("fp16", "lut6")
@pytest.mark.parametrize("form", KEPT)
def test_grouped_products_keep_a_rows_bits_at_every_width_and_place(
    form: WeightFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO's results, which are near those of all experts; its kernels for both differ."""
    monkeypatch.setattr(openvino_experts, "multiplies_rows_alone", lambda *_: False)
    program, rows = mixed(weights(form, bias=np.full(EXPERTS, 0.5, np.float16)), tmp_path), numbers()
    lean, whole = openvino.OpenVINORunner(program, 1), unfused(monkeypatch, "openvino", program)
    grouped = grouped_products(lean)
    kept = {str(node.input(1).get_element_type()) for node in grouped}
    assert len(grouped) == 3 and kept == KEPT[form]
    expected = run(lean, rows)
    close = run(whole, rows).astype(np.float32)
    np.testing.assert_allclose(expected, close, atol=4e-3 * np.abs(close).max())
    assert_rows_keep_their_bits(lean, rows, expected)


@pytest.mark.parametrize("reads_latent", [False, True])
def test_plain_experts_that_no_row_uses_are_left_out(
    reads_latent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """relu squared without a gate: two products instead of three."""
    given, rng = weights(gated=False), np.random.default_rng(2)
    if reads_latent:
        entering, leaving = (projection(rng, D, D, WeightFormat.FP16) for _ in range(2))
        given = replace(given, latent=LatentExperts(entering, leaving))
    program, rows = mixed(given, tmp_path, Activation.RELU_SQUARED), numbers()
    for name in RUNNERS:
        module, kind = RUNNERS[name]
        lean, whole = getattr(module, kind)(program, 1), unfused(monkeypatch, name, program)
        (fused,) = [each for each in experts.fuse_experts(program).operations if each.kind == experts.MIXTURE]
        assert [len([op for op in block if op.kind == "conv"]) for block in fused.blocks] == [2] * EXPERTS
        expected, found = run(whole, rows).astype(np.float32), run(lean, rows).astype(np.float32)
        np.testing.assert_allclose(found, expected, atol=4e-3 * np.abs(expected).max())
        if name == "openvino":
            assert len(grouped_products(lean)) == 2
        else:
            assert (found == expected).all()


def test_experts_that_are_not_alike_run_on_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One expert of another format, which no single product can have beside the others."""
    given = weights(WeightFormat.INT8_CHANNEL)
    assert isinstance(given.experts, list)
    other = weights(WeightFormat.FP16).experts
    assert isinstance(other, list)
    given = replace(given, experts=[*given.experts[:-1], other[-1]])
    program, rows = mixed(given, tmp_path), numbers()
    found = run(openvino.OpenVINORunner(program, 1), rows)
    assert (found == run(unfused(monkeypatch, "openvino", program), rows)).all()


def test_an_expert_that_no_row_uses_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are not numbers here: with all experts they would spoil every row."""
    plan = MixturePlan(EXPERTS, USED, Gating.SOFTMAX, renormalised=True)
    router = np.zeros((EXPERTS, D), np.float32)
    given = weights(plan=plan, router=router)
    program = mixed(given, tmp_path)
    last = f"layer_0_expert_{EXPERTS - 1}_down"
    weight = next(op for op in program.operations if op.outputs == (last,)).inputs["weight"][0]
    spoilt = np.full_like(np.asarray(program.constants[weight]), np.nan)
    program = replace(program, constants={**program.constants, weight: spoilt})
    for name in RUNNERS:
        module, kind = RUNNERS[name]
        assert np.isfinite(run(getattr(module, kind)(program, 1), numbers(4))).all()
        assert not np.isfinite(run(unfused(monkeypatch, name, program), numbers(4))).all()


def test_no_other_split_becomes_a_mixture(tmp_path: Path) -> None:
    """One expert that reads other rows, or a sum in another order, is left as it is."""
    program = mixed(weights(), tmp_path)
    assert experts.fuse_experts(program) != program
    adds = [op for op in program.operations if op.kind == "add" and "expert" in op.inputs["y"][0]]
    first = next(op for op in program.operations if op.name == "layer_0_expert_3_gate")
    other = next(op for op in program.operations if op.name == "layer_0_expert_2_down").outputs
    for changed in (
        replace(adds[3], inputs={"x": adds[3].inputs["x"], "y": adds[3].inputs["x"]}),
        replace(first, inputs={**first.inputs, "x": other}),
    ):
        operations = tuple(changed if op.name == changed.name else op for op in program.operations)
        edited = replace(program, operations=operations)
        assert experts.fuse_experts(edited) == edited
