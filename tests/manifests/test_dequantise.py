"""Dequantising gives the gguf package's bits, whatever the blocks hold."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

from anespec.gguf.dequantise import dequantised

Q8_0 = GGMLQuantizationType.Q8_0


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("kind", [Q8_0, GGMLQuantizationType.Q4_0, GGMLQuantizationType.F16])
def test_random_bytes_give_the_same_bits(
    kind: GGMLQuantizationType, rows: int, blocks: int, seed: int
) -> None:
    """Random bytes hold every kind of scale: subnormal, negative, infinite, no number."""
    _, block_bytes = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, blocks * block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = np.asarray(dequantize(raw, kind), dtype=np.float32)
    found = dequantised(raw, kind)
    assert found.shape == expected.shape
    number = ~np.isnan(expected)
    assert (np.isnan(found) == ~number).all()
    assert (found[number].view(np.uint32) == expected[number].view(np.uint32)).all()


def test_rows_of_a_view_and_of_a_read_only_file() -> None:
    whole = np.random.default_rng(0).integers(0, 100, (9, 68), np.uint8)
    whole.setflags(write=False)
    expected = dequantised(whole, Q8_0)
    assert (dequantised(whole[1::3], Q8_0) == expected[1::3]).all()
    found = dequantised(whole, Q8_0)
    found += 1
    assert (dequantised(whole, Q8_0) == expected).all()
