"""The graph's mask blend against a scatter of rows: the same states, and what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from graphs import layers, program_of, reloaded
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from anespec.convert.graph import kv
from anespec.convert.graph.builder import Var, mb
from anespec.manifests.schema import AttentionShape, KVForm, StateSpec, TensorSpec
from anespec.runtime.backends.pass_inputs import homes_of
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_writes import (
    SLOT_WRITE,
    fuse_slot_writes,
    pruned,
    write_masks,
)
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.system.errors import ArtifactError

HEADS, SLOTS, DIM = 2, 8, 4
MASK = TensorSpec(name="kv_write_mask", shape=(1, 1, SLOTS, None))
NEW = TensorSpec(name="new", shape=(1, HEADS, None, DIM))
STATE = StateSpec(name="k_0", shape=(1, HEADS, SLOTS, DIM), pool="global", layers=(0,))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A program that writes `new` into its one state and returns the state."""

    def build(values: Mapping[str, Var]) -> Var:
        mask = values[MASK.name]
        return write(values[STATE.name], values[NEW.name], mask)

    shard = program_of(build, (NEW, MASK), "held", (STATE,))
    return reloaded(shard, tmp_path_factory.mktemp("slots"))


@pytest.fixture(scope="module")
def blend(written: Program) -> TorchRunner:
    return TorchRunner(written, 1)


@pytest.fixture(scope="module")
def scatter(written: Program) -> OpenVINORunner:
    return OpenVINORunner(written, 1)


def mask_of(slots: tuple[int | None, ...]) -> NDArray[np.float16]:
    mask = np.zeros((1, 1, SLOTS, len(slots)), np.float16)
    for lane, slot in enumerate(slots):
        if slot is not None:
            mask[0, 0, slot, lane] = 1
    return mask


def bits(values: NDArray[np.float16]) -> NDArray[np.uint16]:
    """The bits of values, a negative zero taken for zero: the blend's sum makes it one."""
    return np.ascontiguousarray(values + np.float16(0)).view(np.uint16)


def values_of(seed: int, lanes: int) -> NDArray[np.float16]:
    """K/V rows of all magnitudes, subnormal numbers and both zeros among them."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-26, 15, (1, HEADS, lanes, DIM)).astype(np.float64)
    return (rng.normal(size=exponents.shape) * 2**exponents).astype(np.float16)


def write(state: Var, new: Var, mask: Var) -> Var:
    """All slots of a state of one entry, read again after the write."""
    cell = kv.Cell(STATE.name, state, 0)
    return kv.write(cell, new, kv.homes_of(mask, takes_positions=False), KVForm.REREAD, "written").slots


LANES = st.lists(st.integers(0, SLOTS - 1) | st.none(), min_size=1, max_size=6).filter(
    lambda lanes: (taken := [slot for slot in lanes if slot is not None]) and len(set(taken)) == len(taken)
)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(passes=st.lists(st.tuples(LANES, st.integers(0, 1 << 30)), min_size=1, max_size=4))
def test_a_scatter_leaves_the_bits_of_the_blend(
    blend: TorchRunner, scatter: OpenVINORunner, passes: list[tuple[list[int | None], int]]
) -> None:
    start = values_of(len(passes), SLOTS)
    expected = start.copy()
    for runner in (blend, scatter):
        runner.write_state("k_0", start)
    for lanes, seed in passes:
        new, mask = values_of(seed, len(lanes)), mask_of(tuple(lanes))
        homes = np.array([-1 if slot is None else slot for slot in lanes], np.int32)
        assert (homes_of(mask) == homes).all()
        outputs = [blend.run({"new": new, "kv_write_mask": mask})["held"]]
        outputs.append(scatter.run({"new": new, "kv_write_mask": homes if seed % 2 else mask})["held"])
        for lane, slot in enumerate(lanes):
            if slot is not None:
                expected[:, :, slot] = new[:, :, lane]
        for found in (*outputs, blend.read_state("k_0"), scatter.read_state("k_0")):
            assert (bits(found) == bits(expected)).all()


def test_what_a_scatter_writes_is_rounded_to_fp16(tmp_path: Path) -> None:
    """In the library's own memory, not just when it is read: else exporting a state would change it."""
    factors = (TensorSpec(name="a", shape=NEW.shape), TensorSpec(name="b", shape=NEW.shape))

    def build(values: Mapping[str, Var]) -> Var:
        mask, new = values[MASK.name], mb.mul(x=values["a"], y=values["b"])
        return write(values[STATE.name], new, mask)

    program = reloaded(program_of(build, (*factors, MASK), "held", (STATE,)), tmp_path)
    runner, reference = OpenVINORunner(program, 1), TorchRunner(program, 1)
    mask = mask_of(tuple(range(SLOTS)))
    rng = np.random.default_rng(3)
    for exponents in ((-12, 8), (-16, -4), (0, 8), (-26, -13)):
        a, b = (
            (rng.normal(size=(1, HEADS, SLOTS, DIM)) * 2.0 ** rng.integers(*exponents)).astype(np.float16)
            for _ in "ab"
        )
        for each in (runner, reference):
            each.run({"a": a, "b": b, "kv_write_mask": mask})
        held = np.array(next(iter(runner.request.query_state())).state.data)
        assert (held == held.astype(np.float16)).all()
        exact = a.astype(np.float64) * b
        half_step = np.spacing(np.abs(reference.read_state("k_0"))).astype(np.float64) / 2
        assert (np.abs(held - exact) <= half_step).all()
        again = runner.read_state("k_0")
        runner.write_state("k_0", again)
        assert (runner.read_state("k_0").view(np.uint16) == again.view(np.uint16)).all()


ILLEGAL = {
    "two lanes in one slot": [[0, 0], [0, 1]],
    "one lane in two slots": [[0, 0], [1, 0]],
    "half a write": [[0, 0]],
    "no write": [],
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_masks_are_refused(scatter: OpenVINORunner, name: str) -> None:
    mask = np.zeros((1, 1, SLOTS, 2), np.float16)
    for slot, lane in ILLEGAL[name]:
        mask[0, 0, slot, lane] = 0.5 if name == "half a write" else 1
    with pytest.raises(ValueError, match="a write mask must"):
        scatter.run({"new": values_of(0, 2), "kv_write_mask": mask})


@pytest.mark.parametrize("shape", AttentionShape)
def test_every_write_of_a_shard_is_recognised(tmp_path: Path, shape: AttentionShape) -> None:
    program = reloaded(layers(shape, range(2)), tmp_path)
    fused = fuse_slot_writes(program)
    assert [op.kind for op in fused.operations].count(SLOT_WRITE) == 4
    assert write_masks(fused) == {"kv_write_mask"}
    assert [op.outputs for op in fused.operations] == [op.outputs for op in program.operations]
    kept = {name for op in pruned(fused).operations for names in op.inputs.values() for name in names}
    readers = [op.kind for op in pruned(fused).operations if ("kv_write_mask",) in op.inputs.values()]
    assert "kv_write_mask" in kept
    assert set(readers) == {SLOT_WRITE}


@pytest.mark.parametrize("change", ["another one", "transposed", "another mask"])
def test_what_only_looks_like_a_write_stays_as_it_is(tmp_path: Path, change: str) -> None:
    """A graph that writes wrongly must be run as wrongly as Core ML would run it."""
    square = TensorSpec(name="kv_write_mask", shape=(1, 1, SLOTS, SLOTS))
    other = TensorSpec(name="other_mask", shape=(1, 1, SLOTS, SLOTS))
    new = TensorSpec(name="new", shape=(1, HEADS, SLOTS, DIM))

    def build(values: Mapping[str, Var]) -> Var:
        mask, other_mask = values[square.name], values[other.name]
        summed = mb.reduce_sum(x=other_mask if change == "another mask" else mask, axes=[3], keep_dims=True)
        kept = mb.sub(x=np.float16(2 if change == "another one" else 1), y=summed)
        old = mb.read_state(input=values[STATE.name])
        product = mb.matmul(x=mask, y=values[new.name], transpose_x=change == "transposed")
        blended = mb.add(x=mb.mul(x=old, y=kept), y=product)
        return mb.coreml_update_state(state=values[STATE.name], value=blended)

    program = reloaded(program_of(build, (new, square, other), "held", (STATE,)), tmp_path)
    assert not write_masks(fuse_slot_writes(program))
    feed = {
        "new": values_of(1, SLOTS),
        "kv_write_mask": np.roll(np.eye(SLOTS, dtype=np.float16), 1, axis=0)[None, None],
        "other_mask": np.zeros((1, 1, SLOTS, SLOTS), np.float16),
    }
    runners = (TorchRunner(program, 1), OpenVINORunner(program, 1))
    for runner in runners:
        runner.write_state("k_0", np.ones(STATE.shape, np.float16))
        runner.run(feed)
    np.testing.assert_allclose(*(runner.read_state("k_0") for runner in runners), rtol=1e-3)


SLOTS_IN = TensorSpec(name="kv_position", shape=(None,), dtype="int32")


def stretch(values: Mapping[str, Var], shift: int = 0) -> Var:
    """A program's write of `new` side by side, `shift` slots behind the position that it is given."""
    slots = values[SLOTS_IN.name]
    slots = mb.add(x=slots, y=np.array([shift], np.int32)) if shift else slots
    homes = kv.homes_of(slots, takes_positions=True)
    cell = kv.Cell(STATE.name, values[STATE.name], 0)
    return kv.write(cell, values[NEW.name], homes, KVForm.AT_POSITION, "written").slots


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Program:
    shard = program_of(stretch, (NEW, SLOTS_IN), "held", (STATE,))
    return reloaded(shard, tmp_path_factory.mktemp("stretch"))


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    passes=st.lists(
        st.tuples(st.integers(0, SLOTS - 1), st.integers(1, SLOTS), st.integers(0, 1 << 30)),
        min_size=1,
        max_size=4,
    )
)
def test_rows_side_by_side_are_written_where_they_belong_and_nowhere_else(
    side_by_side: Program, passes: list[tuple[int, int, int]]
) -> None:
    runners = TorchRunner(side_by_side, 1), OpenVINORunner(side_by_side, 1)
    assert runners[1].takes_homes
    expected = values_of(len(passes), SLOTS)
    for runner in runners:
        runner.write_state("k_0", expected)
    for first, lanes, seed in passes:
        lanes = min(lanes, SLOTS - first)
        new = values_of(seed, lanes)
        expected[:, :, first : first + lanes] = new
        given_slots = np.arange(first, first + lanes, dtype=np.int32)
        for runner in runners:
            held = runner.run({"new": new, "kv_position": given_slots})["held"]
            assert (bits(held) == bits(expected)).all()
            assert (bits(runner.read_state("k_0")) == bits(expected)).all()


def test_a_position_beyond_the_state_is_refused(side_by_side: Program) -> None:
    slots = np.arange(SLOTS - 1, SLOTS + 1, dtype=np.int32)
    with pytest.raises(ArtifactError, match="slices"):
        TorchRunner(side_by_side, 1).run({"new": values_of(0, 2), "kv_position": slots})


def test_a_stretch_that_begins_elsewhere_is_no_slot_write(side_by_side: Program, tmp_path: Path) -> None:
    assert write_masks(fuse_slot_writes(side_by_side)) == {"kv_position"}
    shifted = program_of(lambda values: stretch(values, 1), (NEW, SLOTS_IN), "held", (STATE,))
    assert not write_masks(fuse_slot_writes(reloaded(shifted, tmp_path)))


def test_a_sum_over_slots_is_no_write(written: Program) -> None:
    summed_over = next(op.inputs["axes"][0] for op in written.operations if op.kind == "reduce_sum")
    assert write_masks(fuse_slot_writes(written)) == {"kv_write_mask"}
    other = replace(written, constants={**written.constants, summed_over: np.array([2])})
    assert not write_masks(fuse_slot_writes(other))
