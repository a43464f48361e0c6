"""What each target's weights may be: what is refused, and what a mac or iphone artifact never holds."""

import math

import numpy as np
import pytest
from arrays import ArraySource
from gguf.constants import GGMLQuantizationType
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from anespec.convert.options import ConvertOptions
from anespec.convert.weights.encoding import FP16_MAX
from anespec.convert.weights.formats import ENCODINGS, REPACKED, choose, fp16_palette, nearest
from anespec.convert.weights.stored import StoredWeight, store
from anespec.convert.weights.targets import UNFIT, fits
from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import KINDS
from anespec.system.errors import RequestError

BLOCKWISE = (WeightFormat.INT8_BLOCK32, WeightFormat.INT4_BLOCK32)
ON_ENGINE = (Target.MAC, Target.IPHONE)
FOR_ENGINE = [weight_format for weight_format in WeightFormat if fits(weight_format, Target.MAC)]
F32 = GGMLQuantizationType.F32
MAGNITUDES = st.sampled_from([0.0, 1e-8, 1e-5, 0.02, 1.0, 3e3, FP16_MAX])
SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 40))

matrices = st.tuples(
    npst.arrays(np.float32, SHAPES, elements=st.floats(-1, 1, width=32)),
    MAGNITUDES,
).map(lambda drawn: (drawn[0] * np.float32(drawn[1])).astype(np.float32))  # fmt: skip


def stored_as(values: NDArray[np.float32], weight_format: WeightFormat) -> StoredWeight:
    return store(ArraySource(values), choose(weight_format, values.shape[1], F32))


@pytest.mark.parametrize("target", ON_ENGINE)
@pytest.mark.parametrize("weight_format", BLOCKWISE)
def test_formats_with_a_scale_per_block_are_refused(target: Target, weight_format: WeightFormat) -> None:
    with pytest.raises(RequestError) as refused:
        ConvertOptions(target=target, weights=weight_format)
    text, known = str(refused.value), UNFIT[target][weight_format]
    assert text.startswith(f"{weight_format} is not for --target {target}")
    assert known.reason in text
    assert f"({known.grade}: {known.source})" in text
    for mend in ("--target cpu", *(f"--weights {other}" for other in known.instead)):
        assert mend in text
    for other in known.instead:
        assert ConvertOptions(target=target, weights=other).weights.default is other
    assert ConvertOptions(target=Target.CPU, weights=weight_format).weights.default is weight_format


@given(st.sampled_from(ON_ENGINE), st.sampled_from(BLOCKWISE), st.sampled_from([*KINDS, "mlp", "attention"]))
def test_they_are_refused_for_a_named_kind_too(target: Target, weights: WeightFormat, kind: str) -> None:
    with pytest.raises(RequestError, match=rf"^{kind}={weights} is not for .* --weights {kind}=\S+ or"):
        ConvertOptions(target=target, weights=f"int8-channel,{kind}={weights}")


def test_changing_the_target_is_refused_alike() -> None:
    options = ConvertOptions(target=Target.CPU, weights="lut6,head=int4-block32")
    with pytest.raises(RequestError, match="head=int4-block32 is not for --target iphone"):
        options.with_changes(target=Target.IPHONE)


def test_what_the_engine_takes_is_not_what_it_was_seen_to_refuse() -> None:
    assert [w for w in WeightFormat if w not in BLOCKWISE] == FOR_ENGINE
    assert all(fits(weight_format, Target.CPU) for weight_format in WeightFormat)
    assert UNFIT.keys() == set(Target)


@given(
    st.sampled_from(FOR_ENGINE),
    st.sampled_from(list(GGMLQuantizationType)),
    st.integers(1, 400),
    st.integers(1, 9000),
)
@example(WeightFormat.INT8_CHANNEL, GGMLQuantizationType.Q8_0, 64, 64)
@example(WeightFormat.LUT4, GGMLQuantizationType.Q4_K, 64, 256)
def test_no_source_and_no_fallback_brings_blocks_or_offsets_to_the_engine(
    asked: WeightFormat, kind: GGMLQuantizationType, rows: int, width: int
) -> None:
    """A GGUF's own blocks are repacked by the formats that are refused, and by no other."""
    choice = choose(asked, width, kind)
    assert choice.encoding is ENCODINGS[asked]
    assert choice.encoding not in REPACKED.values()
    parts = {part.name: part for part in choice.encoding.parts((rows, width))}
    assert parts.keys() <= {"weight", "data", "scale", "indices", "lut"}
    if "scale" in parts:
        assert parts["scale"].shape == (rows, 1, 1, 1)
    if "lut" in parts:
        assert rows % parts["lut"].shape[0] == 0
        assert math.prod(parts["lut"].shape[1:]) == 1 << parts["indices"].element.bits


@pytest.mark.parametrize(
    "weight_format",
    [w for w in FOR_ENGINE if any(part.name == "scale" for part in ENCODINGS[w].parts((32, 32)))],
)
@given(values=matrices)
@example(values=np.array([[-1.0, -2.0], [-FP16_MAX, 3.0]], np.float32))
def test_scales_are_never_negative(weight_format: WeightFormat, values: NDArray[np.float32]) -> None:
    assert (stored_as(values, weight_format).parts["scale"] > 0).all()


@pytest.mark.slow
@given(matrices)
@example(np.array([[-127.0, 126.0, -1.0]], np.float32))
@example(np.array([[-1.0, -2.0, -3.0]], np.float32))
def test_a_sign_goes_to_the_integers_and_changes_nothing_else(values: NDArray[np.float32]) -> None:
    """Rows whose largest number is negative have the scale of their negatives; no integer is lost by it."""
    plain, flipped = (stored_as(sign * values, WeightFormat.INT8_CHANNEL) for sign in (1, -1))
    assert (plain.parts["scale"] == flipped.parts["scale"]).all()
    whole = plain.parts["data"].astype(int)
    assert (whole == -flipped.parts["data"].astype(int)).all()
    assert np.abs(whole).max() <= 127
    assert plain.added.squared_error == flipped.added.squared_error


def ascending(numbers: list[float]) -> NDArray[np.float32]:
    return np.sort(np.array(numbers, np.float16)).astype(np.float32)


halves = st.floats(-FP16_MAX, FP16_MAX, width=16)


@pytest.mark.slow
@given(
    st.lists(halves, min_size=1, max_size=256).map(ascending),
    npst.arrays(np.float32, st.integers(1, 60), elements=st.floats(-FP16_MAX, FP16_MAX, width=32)),
)
@example(ascending([0.0, 6e-8, 1.2e-7]), np.array([2.9e-8, 3.1e-8, 8.9e-8, 9.1e-8], np.float32))
@example(ascending([1.0, 1.0, 1.0, 1.001]), np.array([1.00048, 1.0005, 0.5, 2.0], np.float32))
def test_every_number_goes_to_the_entry_that_is_nearest(
    entries: NDArray[np.float32], values: NDArray[np.float32]
) -> None:
    middles = (entries[1:] + entries[:-1]) / 2
    values = np.concatenate([values, entries, middles, np.nextafter(middles, np.float32(np.inf))])
    found = np.abs(values.astype(np.float64) - entries[nearest(values, entries)])
    least = np.abs(values[:, None].astype(np.float64) - entries).min(axis=1)
    # A middle is a float32, which may round the real one.
    assert (found <= least + 2.0**-22 * np.abs(values)).all()


@given(st.lists(halves, min_size=1, max_size=256, unique=True), st.integers(0, 2**32 - 1))
def test_numbers_of_no_more_kinds_than_a_palette_has_are_kept(numbers: list[float], seed: int) -> None:
    """What a GGUF can give without loss: 256 different fp16 numbers in every group of rows."""
    drawn = np.random.default_rng(seed).choice(np.array(numbers, np.float32), size=(16, 48))
    weight = stored_as(drawn, WeightFormat.LUT8)
    assert weight.added.max_error == 0
    assert weight.parts["indices"].dtype == np.uint8


@given(matrices, st.sampled_from([16, 64, 256]))
def test_a_palette_ascends_and_is_finite(values: NDArray[np.float32], size: int) -> None:
    palette = fp16_palette(values.reshape(-1), size).astype(np.float64)
    assert palette.shape == (size,)
    assert np.isfinite(palette).all()
    assert (np.diff(palette) >= 0).all()


def test_palettes_of_256_are_closer_than_integers_on_a_trained_model() -> None:
    """The embedded model's own weights: relative errors of 0.0056 and 0.0069 (docs/weights.md)."""
    errors = dict.fromkeys((WeightFormat.LUT8, WeightFormat.INT8_CHANNEL, WeightFormat.LUT6), 0.0)
    with GGUFFile(model_path()) as file:
        values = file.rows("blk.0.ffn_up.weight", np.arange(256))
    for weight_format in errors:
        added = stored_as(values, weight_format).added
        errors[weight_format] = math.sqrt(added.squared_error / added.squares)
    palettes, integers, coarse = errors.values()
    assert palettes < 0.9 * integers < coarse / 3
    assert 1 - palettes**2 / 2 > 0.9975
