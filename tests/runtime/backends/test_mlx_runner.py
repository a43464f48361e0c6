"""What is MLX's own: quantised weights, one thread for all work, states in place, and experts in use."""

import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import ArraySource
from by_hand import rows_for, same_bits
from converting import build
from drafting import OracleSession, SourceOf
from family_files import FAMILIES
from graphs import SLOTS, D, layers, program_of, reloaded
from hypothesis import given
from hypothesis import strategies as st
from mlx_here import REASON, is_missing, mlx_runner
from numpy.typing import NDArray
from tiny_model import TinyModel, write_gguf

if is_missing():
    pytest.skip(REASON, allow_module_level=True)

import mlx.core as mx

from anespec.convert.families.family import Activation
from anespec.convert.families.mixture import Gating
from anespec.convert.graph.experts import MixtureInputs, MixturePlan, MixtureWeights, mixture
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.weights.stored import DeferredWeight
from anespec.gguf.element_types import ElementType
from anespec.manifests.channel_layout import DECLARED
from anespec.manifests.schema import AttentionShape, Target, TensorSpec, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import MLX, open_verifier
from anespec.runtime.backends.portable import fusions
from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.mil_package import Operation, Packed
from anespec.runtime.backends.portable.mlx_gpu import runner as mlx
from anespec.runtime.backends.portable.mlx_gpu.experts import most_used
from anespec.runtime.backends.portable.mlx_gpu.library import worker
from anespec.runtime.backends.portable.mlx_gpu.table import STORED, TABLE
from anespec.runtime.backends.portable.mlx_gpu.weights import GROUPS, Dense, Quantised, of_integers
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.torch_cpu import table as torch_table
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.runtime.backends.runner import Tensor
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.passes import BEST_LOGIT, PassPlan, StateLostError, Verifier, run_pass
from anespec.runtime.proven import Proven
from anespec.runtime.spans import least_spans
from anespec.system.errors import ArtifactError

Rows = NDArray[np.float16]


def test_the_table_has_the_operations_of_the_reference() -> None:
    assert TABLE.keys() | STORED.keys() == torch_table.TABLE.keys() | {"rms_norm"}


# Weights


def integers(
    data: NDArray[Any] | Packed, scale: NDArray[Any], offset: NDArray[Any] | None = None
) -> Arguments[Any]:
    """The arguments of a `constexpr_blockwise_shift_scale`."""
    constants = {"data": data, "scale": scale} | ({} if offset is None else {"offset": offset})
    inputs = {name: (name,) for name in constants}
    return Arguments(Operation("constexpr", "w", inputs, ("w",)), {}, constants, "a shard")


def packed(numbers: NDArray[np.int8], kind: ElementType) -> Packed:
    """Numbers of four bits, the first in the lower half of a byte."""
    halves = numbers.astype(np.uint8).reshape(-1, 2) & 15
    return Packed.of(halves[:, 0] | halves[:, 1] << 4, kind, (*numbers.shape, 1, 1))


FORMS = {
    "int8": (np.int8, None, -128, 127),
    "uint8": (np.uint8, None, 0, 255),
    "int4": (np.int8, ElementType.INT4, -8, 7),
    "uint4": (np.int8, ElementType.UINT4, 0, 15),
}


@given(
    form=st.sampled_from(sorted(FORMS)),
    block=st.sampled_from([8, 16, 32, 48, 64, 96, 128, 160, 256, 384]),
    blocks=st.integers(1, 3),
    has_offset=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_stored_integer_is_exactly_its_number(
    form: str, block: int, blocks: int, has_offset: bool, seed: int
) -> None:
    kind, element, least, most = FORMS[form]
    rng = np.random.default_rng(seed)
    numbers = rng.integers(least, most, (5, block * blocks), endpoint=True).astype(kind)
    numbers[0, :2] = least, most
    scale = rng.normal(size=(5, blocks, 1, 1)).astype(np.float16)
    offset = rng.integers(least, most, scale.shape, endpoint=True).astype(kind) if has_offset else None
    stored = numbers[..., None, None] if element is None else packed(numbers, element)
    found = of_integers(integers(stored, scale, offset))
    shifted = numbers.astype(np.float32)
    if offset is not None:
        shifted -= np.repeat(offset.reshape(5, -1).astype(np.float32), block, axis=1)
    expected = shifted * np.repeat(scale.reshape(5, -1).astype(np.float32), block, axis=1)
    if any(block % size == 0 for size in GROUPS):
        assert isinstance(found, Quantised)
        held = mx.dequantize(found.packed, found.scales, found.biases, found.group, found.bits)
        assert (np.array(held) == expected).all()
        assert found.scales.shape == (5, block * blocks // found.group)
    else:
        assert isinstance(found, Dense)
        assert (np.array(found.matrix) == expected.astype(np.float16)).all()


def test_the_fewest_scales_are_taken() -> None:
    data = np.zeros((2, 384, 1, 1), np.int8)
    groups = {
        blocks: of_integers(integers(data, np.ones((2, blocks, 1, 1), np.float16)))
        for blocks in (1, 3, 6, 12)
    }
    found = {blocks: each.group for blocks, each in groups.items() if isinstance(each, Quantised)}
    assert found == {1: 128, 3: 128, 6: 64, 12: 32}


def test_the_weight_files_are_not_kept_mapped(tmp_path: Path) -> None:
    for form in (WeightFormat.FP16, WeightFormat.INT8_CHANNEL, WeightFormat.LUT4):
        runner = mlx_runner(reloaded(layers(AttentionShape.GROUPED, weight_format=form), tmp_path / form))
        held = [each for each in runner.program.constants.values() if isinstance(each, np.ndarray)]
        assert held and max(each.nbytes for each in held) <= 2 * D


# Threads


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return reloaded(layers(AttentionShape.GROUPED, range(2)), tmp_path_factory.mktemp("mlx"))


def inputs_of(number: int, count: int = 4) -> dict[str, Tensor]:
    """The inputs of a pass of four rows, of which the first `count` write slots from 4 * `number` on."""
    write = np.zeros((1, 1, SLOTS, 4), np.float16)
    attend = np.full((1, 1, 4, SLOTS), np.float16(-1e4))
    for lane in range(count):
        write[0, 0, 4 * number + lane, lane] = 1
        attend[0, 0, lane, : 4 * number + lane + 1] = 0
    attend[0, 0, count:, 0] = 0
    return {
        "x": np.random.default_rng(number).normal(size=(1, D, 4, 1)).astype(np.float16),
        "rope_cos": np.ones((4, 2), np.float16),
        "rope_sin": np.zeros((4, 2), np.float16),
        "attn_mask": attend,
        "kv_write_mask": write,
    }


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result of `work` in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    (result,) = found
    return result


def played(runner: mlx.MLXRunner, call: Callable[[Callable[[], Any]], Any]) -> list[Tensor]:
    """Outputs of three passes and the states after them; each call by way of `call`."""
    found = [call(lambda n=number: runner.run(inputs_of(n))["hidden"]) for number in range(3)]
    return [*found, *(call(lambda n=name: runner.read_state(n)) for name in runner.program.states)]


def test_every_call_may_come_from_another_thread(program: Program) -> None:
    here = mlx_runner(program)
    expected = played(here, lambda work: work())
    here.close()
    runner = elsewhere(lambda: mlx_runner(program))
    for found, wanted in zip(played(runner, elsewhere), expected, strict=True):
        assert same_bits(found, wanted)
    elsewhere(runner.close)


def test_a_pass_may_begin_in_one_thread_and_end_in_another(program: Program) -> None:
    runner = mlx_runner(program)
    expected = runner.run(inputs_of(0))["hidden"]
    elsewhere(lambda: runner.start(inputs_of(0)))
    assert same_bits(elsewhere(runner.finish).tensor("hidden"), expected)


def test_runners_that_run_at_once_do_not_disturb_each_other(program: Program) -> None:
    expected = played(mlx_runner(program), lambda work: work())
    runners = [mlx_runner(program) for _ in range(4)]
    found: dict[int, list[Tensor]] = {}

    def play(number: int) -> None:
        found[number] = played(runners[number], lambda work: work())

    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert all(same_bits(*both) for both in zip(found[number], expected, strict=True))


def test_work_for_the_thread_may_come_from_itself() -> None:
    def work() -> str:
        return worker().call(lambda: threading.current_thread().name)

    assert worker().call(work) == "anespec mlx"


def test_an_error_reaches_who_waits_and_the_thread_goes_on() -> None:
    def fail() -> None:
        raise ArtifactError("no")

    with pytest.raises(ArtifactError, match="no"):
        worker().call(fail)
    assert worker().call(lambda: 1) == 1


# States


def test_a_lane_that_writes_nothing_changes_nothing(program: Program) -> None:
    """The slot of the only row that writes gets that row, as in the reference."""
    runner, reference = mlx_runner(program), TorchRunner(program, 1)
    for each in (runner, reference):
        each.run(inputs_of(0))
    before = [runner.read_state(name) for name in program.states]
    for each in (runner, reference):
        each.run(inputs_of(2, count=1))
    for state, name in zip(before, program.states, strict=True):
        after = runner.read_state(name)
        assert np.flatnonzero((after != state).any(axis=(0, 1, 3))).tolist() == [8]
        expected = reference.read_state(name)[:, :, 8].astype(np.float32)
        np.testing.assert_allclose(after[:, :, 8].astype(np.float32), expected, atol=4e-3)


def test_a_failed_pass_loses_the_states_and_the_next_one_runs(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = mlx_runner(program)
    expected = runner.run(inputs_of(0))["hidden"]
    evaluate = mx.eval

    def fail_once(*arrays: Any) -> None:
        monkeypatch.setattr(mx, "eval", evaluate)
        raise RuntimeError("[malloc] no memory")

    monkeypatch.setattr(mx, "eval", fail_once)
    with pytest.raises(StateLostError, match=r"MLX failed in a pass .*no memory"):
        runner.run(inputs_of(1))
    assert not any(runner.read_state(name).any() for name in program.states)
    assert same_bits(runner.run(inputs_of(0))["hidden"], expected)


def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile passes, as on a GPU."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ (apt-get install g++)")
    monkeypatch.setattr(mlx, "on_gpu", lambda: True)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "compiled"])
def is_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        compiled(monkeypatch)
    return bool(request.param)


def test_a_pass_does_not_copy_the_states(is_compiled: bool, tmp_path: Path) -> None:
    """At its peak a pass takes less beside the states than one more of them."""
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel())
    options = {"context": 16384, "target": Target.CPU, "weights": WeightChoice(WeightFormat.FP16)}
    artifact = build(source, tmp_path / "m.anespec", **options)
    with closing(open_verifier(artifact.path, MLX, 1)) as verifier:
        assert isinstance(verifier, ArtifactVerifier)
        runner = verifier.layers[0].runner
        assert isinstance(runner, mlx.MLXRunner)
        rows = tuple(rows_for(verifier, [3, 4, 5, 6], 0))
        plan = PassPlan(rows, 4, least_spans(rows, 4, verifier.shape), {3: BEST_LOGIT})
        run_pass(verifier, plan)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        for _ in range(3):
            run_pass(verifier, plan)
        assert mx.get_active_memory() == before
        assert mx.get_peak_memory() - before < min(state.nbytes for state in runner.states.values())


@pytest.mark.slow
def test_compiled_passes_compute_the_same(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = played(mlx_runner(program), lambda work: work())
    compiled(monkeypatch)
    for found, wanted in zip(played(mlx_runner(program), lambda work: work()), expected, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), atol=2e-3)


# Experts

HIDDEN, WIDTH, EXPERTS, USED = 64, 32, 8, 3


def projection(rng: np.random.Generator, rows: int, columns: int, form: WeightFormat) -> Projection:
    values = rng.normal(scale=columns**-0.5, size=(rows, columns)).astype(np.float32)
    return Projection(DeferredWeight(ArraySource(values), form))


def weights(form: WeightFormat, arithmetic: bool = False, used: int = USED) -> MixtureWeights:
    rng = np.random.default_rng(0)
    plan = MixturePlan(EXPERTS, used, Gating.SOFTMAX, renormalised=True, arithmetic=arithmetic)

    def mlp() -> MLPWeights:
        shapes = ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
        return MLPWeights(*(projection(rng, *shape, form) for shape in shapes))

    router = projection(rng, EXPERTS, HIDDEN, WeightFormat.FP16)
    return MixtureWeights(plan, router, [mlp() for _ in range(EXPERTS)])


def mixed(given: MixtureWeights, folder: Path) -> Program:
    def made(v: Any) -> Any:
        return mixture(
            MixtureInputs(v["x"], v["x"], v["x"]), given, Activation.SILU, DECLARED, 1e-5, "layer_0"
        )

    return reloaded(program_of(made, (TensorSpec(name="x", shape=(1, HIDDEN, None, 1)),), "out"), folder)


def run(runner: mlx.MLXRunner, rows: Rows) -> Rows:
    return runner.run({"x": np.ascontiguousarray(rows.T[None, :, :, None])})["out"][0, :, :, 0].T


def unfused(program: Program, monkeypatch: pytest.MonkeyPatch) -> mlx.MLXRunner:
    """A runner of the graph as it is, which runs every expert on every row."""
    with monkeypatch.context() as patch:
        patch.setattr(fusions, "fuse_experts", lambda program: program)
        return mlx_runner(program)


ROWS = np.random.default_rng(1).normal(size=(32, HIDDEN)).astype(np.float16)


@pytest.mark.fast_only("int4-block32", "fp16")
@pytest.mark.parametrize("form", WeightFormat)
def test_experts_in_use_give_the_sum_of_all_at_every_width(
    form: WeightFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = mixed(weights(form), tmp_path)
    lean = mlx_runner(program)
    (experts,) = lean.experts.values()
    assert experts.used == USED
    assert len(experts.weights) == 3
    expected = run(lean, ROWS)
    close = run(unfused(program, monkeypatch), ROWS).astype(np.float32)
    np.testing.assert_allclose(expected, close, atol=2e-3 * np.abs(close).max())
    for width in (1, 2, 3, 4, 7, 16):
        found = np.concatenate([run(lean, ROWS[at : at + width]) for at in range(0, len(ROWS), width)])
        assert same_bits(found, expected), width
    order = np.random.default_rng(5).permutation(len(ROWS))
    assert same_bits(run(lean, ROWS[order]), expected[order])


@pytest.mark.parametrize("arithmetic", [False, True])
@pytest.mark.parametrize("used", [1, 3, EXPERTS])
def test_the_graph_says_how_many_experts_a_row_uses(arithmetic: bool, used: int, tmp_path: Path) -> None:
    program = mixed(weights(WeightFormat.FP16, arithmetic, used), tmp_path)
    (split,) = [each for each in program.operations if each.kind == "split"]
    assert most_used(program, split.inputs["x"][0]) == used
    assert most_used(program, "x") is None


def test_what_an_expert_without_weight_computes_is_left_out(tmp_path: Path) -> None:
    """No row uses the last expert, whose weights are no numbers here."""
    given = weights(WeightFormat.FP16)
    values = np.zeros((EXPERTS, HIDDEN), np.float32)
    given = replace(given, router=Projection(DeferredWeight(ArraySource(values), WeightFormat.FP16)))
    program = mixed(given, tmp_path)
    last = f"layer_0_expert_{EXPERTS - 1}_down"
    weight = next(op for op in program.operations if op.outputs == (last,)).inputs["weight"][0]
    spoilt = np.full_like(np.asarray(program.constants[weight]), np.nan)
    program = replace(program, constants={**program.constants, weight: spoilt})
    assert np.isfinite(run(mlx_runner(program), ROWS)).all()


def test_experts_that_are_not_alike_run_on_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, other = weights(WeightFormat.INT8_CHANNEL), weights(WeightFormat.FP16)
    assert isinstance(given.experts, list) and isinstance(other.experts, list)
    program = mixed(replace(given, experts=[*given.experts[:-1], other.experts[-1]]), tmp_path)
    runner = mlx_runner(program)
    assert not runner.experts
    assert same_bits(run(runner, ROWS), run(unfused(program, monkeypatch), ROWS))


# Texts


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("llama", WeightFormat.INT4_BLOCK32),
        pytest.param("qwen3moe", WeightFormat.INT8_BLOCK32, marks=pytest.mark.slow),
        pytest.param("gemma3", WeightFormat.LUT6, marks=pytest.mark.slow),
    ],
)
def test_accepted_and_rejected_drafts_leave_the_text_the_same(
    family: str, form: WeightFormat, tmp_path: Path
) -> None:
    options = {"context": 128, "target": Target.CPU, "weights": WeightChoice(form)}
    artifact = build(FAMILIES / f"{family}.gguf", tmp_path / "m.anespec", **options)
    request = Request(tuple(range(3, 14)), 40)

    def text(verifier: Verifier, source: SourceOf | None = None) -> tuple[list[int], int]:
        proven = replace(Proven.nothing(verifier.shape), speculate=source is not None, widths=(4,))
        engine = Engine(verifier, proven, source)
        found = [token.id for event in engine.generate(request) for token in event.tokens]
        return found, engine.counts.accepted

    with closing(open_verifier(artifact.path, MLX, 1)) as plain:
        expected, _ = text(plain)

    def session(tenant: str, prompt: Sequence[int]) -> OracleSession:
        return OracleSession([*prompt, *expected], len(prompt), wrong_each=4)

    with closing(open_verifier(artifact.path, MLX, 1)) as drafted:
        found, accepted = text(drafted, SourceOf(session))
    assert found == expected
    assert 10 < accepted < 40
