"""One-hot products with slots against a gather of rows: the same values, and what is refused."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from graphs import program_of, reloaded
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.schema import TensorSpec
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_reads import SLOT_READ, fuse_slot_reads, read_masks, read_slots
from anespec.runtime.backends.portable.slot_writes import pruned
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner

TAPS, SLOTS, WIDTH = 3, 8, 4
MASK = TensorSpec(name="taps", shape=(1, TAPS, None, SLOTS))
HELD = TensorSpec(name="slots", shape=(1, 1, SLOTS, WIDTH))


def read(values: Mapping[str, Var]) -> Var:
    """What the rows of the mask show, summed over the taps, as a convolution does."""
    rows = mb.reshape(x=values[MASK.name], shape=(1, 1, -1, SLOTS))
    found = mb.matmul(x=rows, y=values[HELD.name])
    return mb.reduce_sum(x=mb.reshape(x=found, shape=(1, TAPS, -1, WIDTH)), axes=[1], keep_dims=True)


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return reloaded(program_of(read, (MASK, HELD), "read"), tmp_path_factory.mktemp("reads"))


@pytest.fixture(scope="module")
def products(reading: Program) -> TorchRunner:
    return TorchRunner(reading, 1)


@pytest.fixture(scope="module")
def gather(reading: Program) -> OpenVINORunner:
    return OpenVINORunner(reading, 1)


def mask_of(shown: list[list[int | None]]) -> NDArray[np.float16]:
    """The mask of rows that show these slots, by row and tap."""
    mask = np.zeros((1, TAPS, len(shown), SLOTS), np.float16)
    for lane, slots in enumerate(shown):
        for tap, slot in enumerate(slots):
            if slot is not None:
                mask[0, tap, lane, slot] = 1
    return mask


ROWS = st.lists(
    st.lists(st.integers(0, SLOTS - 1) | st.none(), min_size=TAPS, max_size=TAPS), min_size=1, max_size=6
)


@settings(max_examples=examples(40), deadline=None)
@given(shown=ROWS, seed=st.integers(0, 1 << 30))
def test_a_gather_has_the_values_of_the_products(
    products: TorchRunner, gather: OpenVINORunner, shown: list[list[int | None]], seed: int
) -> None:
    slots = np.random.default_rng(seed).normal(size=HELD.shape).astype(np.float16)
    inputs = {"taps": mask_of(shown), "slots": slots}
    expected = products.run(inputs)["read"]
    assert expected.any() == any(slot is not None for row in shown for slot in row)
    assert (gather.run(inputs)["read"] == expected).all()


def test_the_product_is_recognised_and_nothing_of_it_stays(reading: Program) -> None:
    fused = pruned(fuse_slot_reads(reading))
    assert read_masks(fused) == {"taps"}
    assert [op.kind for op in fused.operations if op.kind in ("matmul", SLOT_READ)] == [SLOT_READ]


def test_a_mask_with_another_use_stays_a_product(tmp_path: Path) -> None:
    def build(values: Mapping[str, Var]) -> Var:
        total = mb.reduce_sum(x=values[MASK.name], axes=[1, 3], keep_dims=True)
        return mb.mul(x=read(values), y=total)

    program = reloaded(program_of(build, (MASK, HELD), "read"), tmp_path)
    assert not read_masks(fuse_slot_reads(program))
    inputs = {"taps": mask_of([[1, None, 2]]), "slots": np.ones(HELD.shape, np.float16)}
    assert (OpenVINORunner(program, 1).run(inputs)["read"] == 4).all()


def test_a_product_with_the_mask_on_the_right_stays(tmp_path: Path) -> None:
    def build(values: Mapping[str, Var]) -> Var:
        rows = mb.reshape(x=values[MASK.name], shape=(1, 1, -1, SLOTS))
        return mb.matmul(x=rows, y=rows, transpose_y=True)

    assert not read_masks(fuse_slot_reads(reloaded(program_of(build, (MASK,), "read"), tmp_path)))


@pytest.mark.parametrize("fault", [0.5, 2.0, np.nan])
def test_a_row_that_is_not_one_hot_is_refused(gather: OpenVINORunner, fault: float) -> None:
    wrong = mask_of([[1, 2, 3]])
    wrong[0, 0, 0, 1] = fault
    twice = mask_of([[1, 2, 3]])
    twice[0, 0, 0, 5] = 1
    for mask in (wrong, twice):
        with pytest.raises(ValueError, match="one-hot or zero"):
            gather.run({"taps": mask, "slots": np.ones(HELD.shape, np.float16)})


def test_rows_that_show_nothing_are_zeros_also_of_slot_0() -> None:
    found = read_slots(mask_of([[None, 7, 0]]))
    assert found.slots.tolist() == [0, 7, 0]
    assert found.shown.ravel().tolist() == [0, 1, 1]
