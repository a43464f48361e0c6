"""What rounding to fp16 and to int8 channels costs, and what it refuses."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from anespec.convert.weights.stored import FP16_MAX, DenseWeight, ScaledWeight, quantise_per_channel, store
from anespec.manifests.errors import UnsupportedModelError
from anespec.manifests.schema import WeightFormat

# Half a smallest fp16 number: what no fp16 scale can resolve.
UNRESOLVED = 2.0**-25


@st.composite
def matrices(draw: st.DrawFn) -> NDArray[np.float32]:
    """Matrices whose rows are of very different magnitudes, up to the ends of fp16's range."""
    values = draw(
        npst.arrays(
            np.float32,
            npst.array_shapes(min_dims=2, max_dims=2, max_side=6),
            elements=st.floats(-1, 1, width=32),
        )
    )
    magnitudes = st.sampled_from([1e-9, 1e-7, 1e-6, 2e-5, 1e-4, 1e-3, 0.02, 1.0, 300.0, 6.5e4, FP16_MAX])
    rows = draw(st.lists(magnitudes, min_size=len(values), max_size=len(values)))
    return (values * np.array(rows)[:, None]).astype(np.float32)


def dequantised(weight: ScaledWeight) -> NDArray[np.float64]:
    return (weight.data.astype(np.float64) * weight.scale.astype(np.float64))[:, :, 0, 0]


@given(matrices())
def test_int8_is_within_half_a_scale_of_every_element(values: NDArray[np.float32]) -> None:
    weight = quantise_per_channel(values, "w")
    assert weight.data.dtype == np.int8
    assert weight.scale.shape == (len(values), 1, 1, 1)
    half = weight.scale.astype(np.float64)[:, 0, 0, 0] / 2
    error = np.abs(dequantised(weight) - values).max(axis=1)
    assert (error <= half * (1 + 1e-5) + UNRESOLVED).all()
    largest = np.abs(values).max(axis=1)
    assert (2 * half <= largest / 127 * (1 + 2.0**-10) + 2 * UNRESOLVED).all(), "coarser than needed"


@given(matrices())
@example(np.array([[FP16_MAX, -1.0], [0.5, -FP16_MAX]], np.float32))
def test_int8_stays_finite_in_fp16(values: NDArray[np.float32]) -> None:
    weight = quantise_per_channel(values, "w")
    assert np.isfinite(weight.data.astype(np.float16) * weight.scale).all()


def test_zero_rows_stay_zero() -> None:
    weight = quantise_per_channel(np.array([[0, 0], [0, -1]], np.float32), "w")
    assert not dequantised(weight)[0].any()
    assert (weight.scale > 0).all()
    assert dequantised(weight)[1, 1] == pytest.approx(-1, rel=1e-3)


@pytest.mark.parametrize("weight_format", WeightFormat)
@pytest.mark.parametrize("huge", [1e5, -1e5, 3e38])
def test_values_beyond_fp16_are_named(weight_format: WeightFormat, huge: float) -> None:
    values = np.array([[0.5, 1.0], [0.5, huge]], np.float32)
    with pytest.raises(UnsupportedModelError, match=r"'blk\.7\.ffn_up\.weight' has values beyond fp16"):
        store(values.__getitem__, values.shape, weight_format, "blk.7.ffn_up.weight")


def test_fp16_is_rounded_to_nearest() -> None:
    values = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    weight = store(values.__getitem__, values.shape, WeightFormat.FP16, "w")
    assert isinstance(weight, DenseWeight)
    assert weight.values.shape == (5, 7, 1, 1)
    assert (weight.values[:, :, 0, 0] == values.astype(np.float16)).all()
