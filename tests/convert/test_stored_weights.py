"""What storing weights keeps, what it costs, and what it refuses."""

import numpy as np
import pytest
from arrays import ArraySource
from gguf.constants import GGMLQuantizationType
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from anespec.convert.weights.encoding import FP16_MAX, extremes_of, stored_bytes
from anespec.convert.weights.formats import GROUP_ROWS, choose, fp16_palette, group_rows
from anespec.convert.weights.linear import INT4, INT8, Grid, quantise_rows
from anespec.convert.weights.stored import StoredWeight, store
from anespec.manifests.schema import WeightFormat
from anespec.system.errors import UnsupportedModelError

F32 = GGMLQuantizationType.F32
UNRESOLVED = 2.0**-25
"""Half a smallest fp16 number: what no fp16 scale can resolve."""


@st.composite
def matrices(draw: st.DrawFn, width: int | None = None) -> NDArray[np.float32]:
    """Matrices whose rows are of very different magnitudes, up to the ends of fp16's range."""
    shape = (draw(st.integers(1, 6)), width or draw(st.integers(1, 6)))
    values = draw(npst.arrays(np.float32, shape, elements=st.floats(-1, 1, width=32)))
    magnitudes = st.sampled_from([0, 1e-9, 1e-7, 1e-6, 2e-5, 1e-4, 1e-3, 0.02, 1.0, 300.0, 6.5e4, FP16_MAX])
    rows = draw(st.lists(magnitudes, min_size=len(values), max_size=len(values)))
    return (values * np.array(rows)[:, None]).astype(np.float32)


class OnlyPlain(Grid):
    """A grid that tries no other scale than the plain one."""

    def tops_for(self, width: int) -> tuple[float, ...]:
        return self.tops[:1]


def stored_as(values: NDArray[np.float32], weight_format: WeightFormat) -> StoredWeight:
    return store(ArraySource(values), choose(weight_format, values.shape[1], F32))


def numbers(weight: StoredWeight) -> NDArray[np.float64]:
    """What the parts stand for, by the definitions of Core ML's operations, in float64."""
    parts = {name: array.astype(np.float64) for name, array in weight.parts.items()}
    if "weight" in parts:
        return parts["weight"][:, :, 0, 0]
    if "lut" in parts:
        groups = len(parts["lut"])
        indices = weight.parts["indices"].astype(int).reshape(groups, -1)
        chosen = np.take_along_axis(parts["lut"].reshape(groups, -1), indices, axis=1)
        return chosen.reshape(weight.parts["indices"].shape[:2])
    data, scale = parts["data"][:, :, 0, 0], parts["scale"][:, :, 0, 0]
    repeats = data.shape[1] // scale.shape[1]
    offset = parts["offset"][:, :, 0, 0] if "offset" in parts else np.zeros_like(scale)
    return np.repeat(scale, repeats, 1) * (data - np.repeat(offset, repeats, 1))


def squared_error(
    values: NDArray[np.float32], whole: NDArray[np.float32], scales: NDArray[np.float16]
) -> NDArray[np.float64]:
    """Each row's, in float64."""
    stored = whole.astype(np.float64) * scales.astype(np.float64)[:, None]
    return ((stored - values) ** 2).sum(axis=1)


def plain_error(values: NDArray[np.float32], grid: Grid) -> NDArray[np.float64]:
    """Each row's squared error where its largest magnitude alone sets the scale."""
    wide = values.astype(np.float64)
    extreme = np.take_along_axis(wide, np.abs(wide).argmax(axis=1)[:, None], axis=1)
    scale = extreme / (grid.high if grid.low == -grid.high else grid.low)
    scale[scale == 0] = 1
    return ((np.clip(np.rint(wide / scale), grid.low, grid.high) * scale - wide) ** 2).sum(axis=1)


@pytest.mark.slow
@given(matrices(width=32) | matrices())
@example(np.array([[FP16_MAX, -1.0], [0.5, -FP16_MAX]], np.float32))
@pytest.mark.parametrize("weight_format", WeightFormat)
def test_what_is_reported_is_what_is_stored(weight_format: WeightFormat, values: NDArray[np.float32]) -> None:
    weight = stored_as(values, weight_format)
    errors = numbers(weight) - values
    assert np.isfinite(errors).all()
    assert np.abs(numbers(weight)).max() <= FP16_MAX
    added = weight.added
    size = float(np.abs(values).max())
    assert added.max_error == pytest.approx(np.abs(errors).max(), rel=1e-4, abs=1e-6 * size)
    lost = 1e-40  # squares too small for float32
    assert added.squares == pytest.approx((values.astype(np.float64) ** 2).sum(), rel=1e-5, abs=lost)
    assert added.squared_error == pytest.approx((errors**2).sum(), rel=1e-3, abs=1e-11 * size**2 + lost)


@pytest.mark.slow
@given(matrices(width=32) | matrices())
@pytest.mark.parametrize("grid", [INT8, INT4])
def test_a_scale_is_never_worse_than_the_largest_magnitude_alone(
    grid: Grid, values: NDArray[np.float32]
) -> None:
    whole, scales = quantise_rows(values, extremes_of(values), grid)
    assert (whole == np.rint(whole)).all()
    assert whole.min() >= grid.low
    assert whole.max() <= grid.high
    assert (scales != 0).all()
    error = squared_error(values, whole, scales)
    # fp16 rounds a scale by up to 2^-11, below its smallest number by half of that number's step, and at the
    # end of its range downwards.
    slack = np.abs(values).astype(np.float64).max(axis=1) * 2**-10 + 130 * UNRESOLVED
    bound = np.sqrt(plain_error(values, grid)) + slack * np.sqrt(values.shape[1])
    assert (np.sqrt(error) <= bound).all()
    plain = squared_error(
        values, *quantise_rows(values, extremes_of(values), OnlyPlain(grid.low, grid.high, grid.tops))
    )
    assert (error <= plain * (1 + 1e-5) + 1e-40).all()


@pytest.mark.parametrize(("width", "least"), [(64, 0.02), (1024, 0.015), (8192, 0.03)])
def test_choosing_the_scale_pays(width: int, least: float) -> None:
    values = np.random.default_rng(0).normal(size=(256, width)).astype(np.float32)
    error = squared_error(values, *quantise_rows(values, extremes_of(values), INT8))
    assert error.sum() < (1 - least) * plain_error(values, INT8).sum()


@pytest.mark.parametrize("weight_format", WeightFormat)
def test_zero_rows_stay_zero(weight_format: WeightFormat) -> None:
    values = np.zeros((GROUP_ROWS * 2, 32), np.float32)
    values[GROUP_ROWS:, 3] = -1
    found = numbers(stored_as(values, weight_format))
    assert not found[:GROUP_ROWS].any()
    assert found[GROUP_ROWS:, 3] == pytest.approx(-1, rel=1e-3)
    assert not np.delete(found, 3, axis=1).any()


@pytest.mark.parametrize("weight_format", WeightFormat)
@pytest.mark.parametrize("huge", [1e5, -1e5, 3e38])
def test_values_beyond_fp16_are_named(weight_format: WeightFormat, huge: float) -> None:
    values = np.array([[0.5, 1.0], [0.5, huge]], np.float32)
    source = ArraySource(values, name="blk.7.ffn_up.weight")
    with pytest.raises(
        UnsupportedModelError, match=r"'blk\.7\.ffn_up\.weight' has values beyond the range of fp16"
    ):
        store(source, choose(weight_format, 2, F32))


def test_fp16_is_rounded_to_nearest() -> None:
    values = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    weight = stored_as(values, WeightFormat.FP16).parts["weight"]
    assert weight.shape == (5, 7, 1, 1)
    assert (weight[:, :, 0, 0] == values.astype(np.float16)).all()


@pytest.mark.parametrize("weight_format", WeightFormat)
def test_the_pieces_do_not_show(weight_format: WeightFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(96, 64)).astype(np.float32)
    whole = stored_as(values, weight_format)
    monkeypatch.setattr("anespec.convert.weights.stored.PIECE_ELEMENTS", 64 * 20)
    pieces = stored_as(values, weight_format)
    assert whole.parts.keys() == pieces.parts.keys()
    assert all((whole.parts[name] == pieces.parts[name]).all() for name in whole.parts)
    assert pieces.added.squared_error == pytest.approx(whole.added.squared_error)


@pytest.mark.parametrize("weight_format", [WeightFormat.INT8_BLOCK32, WeightFormat.INT4_BLOCK32])
def test_rows_that_are_no_whole_blocks_become_int8_channel(weight_format: WeightFormat) -> None:
    assert choose(weight_format, 64, F32).fallback is None
    choice = choose(weight_format, 48, F32)
    assert choice.encoding.weight_format is WeightFormat.INT8_CHANNEL
    assert choice.fallback == "rows of 48 are not a whole number of blocks of 32"


def test_bytes_of_each_format() -> None:
    shape = (64, 96)
    weights, blocks = 64 * 96, 64 * 3
    found = {
        (asked.value, kind.name): stored_bytes(choose(asked, 96, kind).encoding, shape)
        for asked in WeightFormat
        for kind in (F32, GGMLQuantizationType.Q4_1)
    }
    palettes = 64 // GROUP_ROWS
    expected = {
        "fp16": 2 * weights,
        "int8-block32": weights + 2 * blocks,
        "lut8": weights + palettes * 256 * 2,
        "int8-channel": weights + 2 * 64,
        "lut6": weights * 6 // 8 + palettes * 64 * 2,
        "int4-block32": weights // 2 + 2 * blocks,
        "lut4": weights // 2 + palettes * 16 * 2,
    }
    assert {name: found[name, "F32"] for name in expected} == expected
    assert found["int4-block32", "Q4_1"] == weights // 2 + (2 + 4) * blocks


@pytest.mark.parametrize("rows", [1, 7, 16, 48, 31 * 4])
def test_palettes_divide_the_rows(rows: int) -> None:
    values = np.random.default_rng(0).normal(size=(rows, 40)).astype(np.float32)
    weight = stored_as(values, WeightFormat.LUT4)
    groups = len(weight.parts["lut"])
    assert rows % groups == 0
    assert rows // groups == group_rows(rows) <= GROUP_ROWS
    assert np.sqrt(weight.added.squared_error / weight.added.squares) < 0.15


def nearest_error(values: NDArray[np.float32], palette: NDArray[np.floating]) -> float:
    return float((np.abs(values[:, None].astype(np.float64) - palette[None]).min(axis=1) ** 2).sum())


@given(matrices())
@example(np.array([[0, 0, 0, 0, 1000]], np.float32))
def test_a_palette_is_no_worse_than_evenly_spaced_numbers(values: NDArray[np.float32]) -> None:
    flat = values.reshape(-1)
    palette = fp16_palette(flat, 16)
    assert (np.diff(palette.astype(np.float64)) >= 0).all()
    even = np.linspace(flat.min(), flat.max(), 16)
    rounding = len(flat) * (2.0**-11 * np.abs(flat).astype(np.float64).max() + UNRESOLVED) ** 2
    found, expected = nearest_error(flat, palette.astype(np.float64)), nearest_error(flat, even)
    assert np.sqrt(found) <= np.sqrt(expected) + np.sqrt(rounding)


@pytest.mark.slow
def test_a_palette_of_normal_numbers_is_near_the_optimum() -> None:
    """Lloyd-Max for a normal distribution: 0.009497 at 16 levels, 0.000671 at 64 (Max, 1960; Lloyd, 1982).

    At 256 it is what Panter and Dite give for many levels, sqrt(3) pi / 2 over their square.
    """
    values = np.random.default_rng(0).normal(size=60_000).astype(np.float32)
    for size, optimum in ((16, 0.009497), (64, 0.000671), (256, np.sqrt(3) * np.pi / 2 / 256**2)):
        error = nearest_error(values, fp16_palette(values, size).astype(np.float64)) / len(values)
        assert error < 1.05 * optimum
