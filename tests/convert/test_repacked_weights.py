"""GGUF blocks that are repacked: the same integers and scales, through package and loader.

gguf-py's own reading of the blocks is the truth.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import ArraySource
from blocks import random_q4_k
from examples import examples
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from graphs import projection_of, reloaded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from anespec.convert.weights.formats import choose
from anespec.convert.weights.stored import store
from anespec.manifests.schema import WeightFormat
from anespec.runtime.backends.portable.mil_package import unpacked
from anespec.validate.golden.stored_weights import stored_weight

Q8_0, Q4_0, Q4_1, Q4_K = (GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q4_1", "Q4_K"))
FORMAT_OF = {
    Q8_0: WeightFormat.INT8_BLOCK32,
    Q4_0: WeightFormat.INT4_BLOCK32,
    Q4_1: WeightFormat.INT4_BLOCK32,
    Q4_K: WeightFormat.INT4_BLOCK32,
}
SCALES = st.floats(0, 500, width=16).filter(lambda d: d == 0 or d > 1e-6)


def random_source(kind: GGMLQuantizationType, rows: int = 48, columns: int = 512) -> ArraySource:
    if kind is Q4_K:
        return ArraySource.of_blocks(random_q4_k(rows, columns), kind)
    rng = np.random.default_rng(1)
    values = rng.normal(size=(rows, columns)) * rng.uniform(1e-3, 1, (rows, 1))
    values[3] = 0
    values[4, 32:64] = 0.25
    return ArraySource(values.astype(np.float32), kind)


def constants_of(source: ArraySource, folder: Path) -> dict[str, NDArray[Any]]:
    """The parts of the weight as they come out of a written package, (rows, …)."""
    program = reloaded(projection_of(source, FORMAT_OF[source.kind]), folder)
    made = next(op for op in program.operations if op.kind == "constexpr_blockwise_shift_scale")
    parts = {}
    for key in {"data", "scale", "offset"} & made.inputs.keys():
        array = unpacked(program.constants[made.inputs[key][0]])
        parts[key] = array.reshape(len(array), -1)
    return parts


def test_mxfp4_keeps_its_numbers() -> None:
    """Every scale that fp16 holds; below its range a block loses what is below 2^-24."""
    rng = np.random.default_rng(2)
    blocks = rng.integers(0, 256, size=(36, 8, 17), dtype=np.uint8)
    blocks[..., 0] = np.arange(36)[:, None] + 104
    source = ArraySource.of_blocks(blocks.reshape(36, -1), GGMLQuantizationType.MXFP4)
    choice = choose(WeightFormat.INT8_BLOCK32, source.shape[1], source.kind)
    stored = store(source, choice)
    assert stored.added.max_error == 0
    sizes = (0, 1, 2, 3, 4, 6, 8, 12)
    assert set(np.unique(stored.parts["data"])) == {*sizes, *(-size for size in sizes)}
    blocks[0, :, 0] = 0
    small = ArraySource.of_blocks(blocks.reshape(36, -1), GGMLQuantizationType.MXFP4)
    assert 0 < store(small, choice).added.max_error < 2.0**-24


def fields(source: ArraySource, **offsets: int) -> dict[str, NDArray[np.float16]]:
    """fp16 fields of simple blocks by their byte offsets."""
    size = {Q8_0: 34, Q4_0: 18, Q4_1: 20}[source.kind]
    blocks = source.raw.reshape(len(source.raw), -1, size)
    return {
        name: np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[..., 0]
        for name, at in offsets.items()
    }


@pytest.mark.parametrize(("kind", "dtype", "taken_off"), [(Q8_0, np.int8, 0), (Q4_0, np.int8, 8)])
def test_integers_and_scales_are_the_same(
    kind: GGMLQuantizationType, dtype: type, taken_off: int, tmp_path: Path
) -> None:
    source = random_source(kind)
    parts = constants_of(source, tmp_path)
    assert parts.keys() == {"data", "scale"}
    d = fields(source, d=0)["d"]
    assert (parts["scale"].view(np.uint16) == d.view(np.uint16)).all()
    steps = np.repeat(d.astype(np.float32), 32, axis=1)
    truth = dequantize(source.raw, kind)
    assert parts["data"].dtype == dtype
    assert (parts["data"].astype(np.float32) * steps == truth).all()
    whole = np.divide(truth, steps, out=np.zeros_like(truth), where=steps != 0)
    assert (parts["data"][steps != 0] == np.rint(whole[steps != 0])).all()
    assert parts["data"].min() >= -128 if taken_off == 0 else parts["data"].min() == -taken_off


def test_q4_1_keeps_integers_scales_and_minimums(tmp_path: Path) -> None:
    source = random_source(Q4_1)
    parts = constants_of(source, tmp_path)
    found = fields(source, d=0, m=2)
    scaled = found["d"] != 0
    assert not scaled.all()
    assert (parts["scale"][scaled].view(np.uint16) == found["d"][scaled].view(np.uint16)).all()
    minimum = (-parts["offset"].astype(np.float64) * parts["scale"]).astype(np.float16)
    assert (minimum[scaled].view(np.uint16) == found["m"][scaled].view(np.uint16)).all()
    assert (minimum[~scaled] == found["m"][~scaled]).all()
    raw = source.raw.reshape(len(source.raw), -1, 20)[:, :, 4:]
    q = np.concatenate([raw & 15, raw >> 4], axis=-1)
    assert (parts["data"].reshape(q.shape)[scaled] == q[scaled]).all()


@pytest.mark.parametrize(("kind", "most"), [(Q8_0, 0.0), (Q4_0, 0.0), (Q4_1, 2e-7), (Q4_K, 1e-3)])
def test_numbers_are_those_of_gguf_py(kind: GGMLQuantizationType, most: float, tmp_path: Path) -> None:
    source = random_source(kind)
    program = reloaded(projection_of(source, FORMAT_OF[kind]), tmp_path)
    found = stored_weight(program, "y").rows(np.arange(source.shape[0]))
    truth = dequantize(source.raw, kind)
    largest = np.abs(truth).max(axis=1, keepdims=True)
    assert (np.abs(found - truth) <= most * largest).all()
    choice = choose(FORMAT_OF[kind], source.shape[1], kind)
    assert choice.encoding.lossless == (kind is not Q4_K)
    added = store(source, choice).added
    assert np.sqrt(added.squared_error / added.squares) <= most


def test_q4_k_keeps_its_integers(tmp_path: Path) -> None:
    source = random_source(Q4_K)
    raw = source.raw.reshape(len(source.raw), -1, 144)[:, :, 16:].reshape(len(source.raw), -1, 4, 32)
    q = np.stack([raw & 15, raw >> 4], axis=-2).reshape(len(source.raw), -1)
    parts = constants_of(source, tmp_path)
    scaled = np.repeat(parts["offset"] != -1, 32, axis=1)
    assert scaled.mean() > 0.5
    assert (parts["data"][scaled] == q[scaled]).all()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    d=SCALES,
    m=st.floats(-4000, 4000, width=16),
    q=st.lists(st.integers(0, 255), min_size=16, max_size=16),
    negative=st.booleans(),
)
def test_any_q4_1_block(d: float, m: float, q: list[int], negative: bool) -> None:
    head = np.array([-d if negative else d, m], "<f2").view(np.uint8)
    source = ArraySource.of_blocks(np.concatenate([head, np.array(q, np.uint8)])[None], Q4_1)
    added = store(source, choose(WeightFormat.INT4_BLOCK32, 32, Q4_1)).added
    size = max(abs(m), 15 * d)
    assert added.max_error <= 3e-7 * size


@pytest.mark.parametrize("kind", [Q8_0, Q4_0])
def test_rows_in_another_order_keep_their_blocks(kind: GGMLQuantizationType) -> None:
    source = random_source(kind)
    order = np.random.default_rng(0).permutation(source.shape[0])
    moved = ArraySource.of_blocks(source.raw[order], kind)
    choice = choose(FORMAT_OF[kind], source.shape[1], kind)
    parts, expected = store(moved, choice).parts, store(source, choice).parts
    assert all((parts[name] == expected[name][order]).all() for name in parts)
