"""Every weight format in the tables of operations, and numbers of less than a byte."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from arrays import ArraySource
from gguf.constants import GGMLQuantizationType
from graphs import projection_of
from hypothesis import given
from hypothesis import strategies as st
from mlx_here import mlx_runner

from anespec.convert.package import write_package
from anespec.gguf.element_types import PACKED_TYPES, ElementType
from anespec.manifests.schema import WeightFormat
from anespec.runtime.backends.portable.mil_package import Packed, unpacked
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import load_program
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.system.errors import ArtifactError
from anespec.validate.golden.figures import ACTIVATION_GROUPS
from anespec.validate.golden.stored_weights import stored_weight

Q8_0, Q4_0, Q4_1, F32 = (GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q4_1", "F32"))
ROWS, COLUMNS = 48, 96
CASES = [(weight_format, F32) for weight_format in WeightFormat]
CASES += [
    (WeightFormat.INT8_BLOCK32, Q8_0),
    (WeightFormat.INT4_BLOCK32, Q4_0),
    (WeightFormat.INT4_BLOCK32, Q4_1),
]
RUNNERS = {"torch": TorchRunner, "openvino": OpenVINORunner, "mlx": mlx_runner}


def source_of(kind: GGMLQuantizationType, rows: int = ROWS) -> ArraySource:
    rng = np.random.default_rng(0)
    return ArraySource((0.1 * rng.normal(size=(rows, COLUMNS)) + 0.05).astype(np.float32), kind)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].name}")
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    weight_format, kind = request.param
    write_package(projection_of(source_of(kind), weight_format), tmp_path / "p.mlpackage")
    return tmp_path / "p.mlpackage"


@pytest.mark.parametrize("library", RUNNERS)
def test_one_channel_at_a_time_gives_the_stored_weight(package: Path, library: str) -> None:
    """A row with a single one picks out a column; no rounding of activations can hide an error."""
    program = load_program(package)
    x = np.eye(COLUMNS, dtype=np.float16)[None, :, :, None]
    found = RUNNERS[library](program, 1).run({"x": x})["out"][0, :, :, 0].astype(np.float32)
    expected = stored_weight(program, "y").rows(np.arange(ROWS))
    assert np.abs(found - expected).max() <= 2.0**-11 * np.abs(expected).max()


@pytest.mark.parametrize("library", RUNNERS)
def test_products_are_those_of_the_stored_weight(package: Path, library: str) -> None:
    program = load_program(package)
    x = np.random.default_rng(1).normal(size=(5, COLUMNS)).astype(np.float16)
    found = RUNNERS[library](program, 1).run({"x": x.T[None, :, :, None]})["out"][0, :, :, 0]
    expected = stored_weight(program, "y").rows(np.arange(ROWS)) @ x.T.astype(np.float32)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < (0.02 if library == "openvino" else 0.001)


def test_coremltools_reads_the_same_numbers(package: Path) -> None:
    """Apple's own reader of packages, and its own arithmetic of compressed weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import coremltools as ct
        from coremltools.converters.mil.frontend.milproto import load as milproto

    model = ct.models.MLModel(str(package), skip_model_load=True)
    program = milproto.load(model.get_spec(), model.get_spec().specificationVersion, model.weights_dir)
    conv = next(op for op in program.functions["main"].operations if op.op_type == "conv")
    made = conv.weight.op
    values = conv.weight.val if made.op_type == "const" else made.materialized_val_inference()
    ours = load_program(package)
    expected = stored_weight(ours, "y").rows(np.arange(ROWS))
    assert np.abs(values[:, :, 0, 0].astype(np.float32) - expected).max() <= 2.0**-9 * np.abs(expected).max()
    if made.op_type == "const":
        return
    same = next(op for op in ours.operations if op.kind == made.op_type)
    for name, (value,) in same.inputs.items():
        assert (unpacked(ours.constants[value]) == made.inputs[name].val).all(), name


@given(st.sampled_from(PACKED_TYPES), st.lists(st.integers(0, 63), min_size=1, max_size=40))
def test_packed_numbers_come_out_as_they_went_in(kind: ElementType, numbers: list[int]) -> None:
    codes = [number % (1 << kind.bits) for number in numbers]
    bits = "".join(f"{code:0{kind.bits}b}"[::-1] for code in codes)
    data = [int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8)]
    found = Packed(np.array(data, np.uint8), kind, (1, len(codes))).unpacked()
    signed = kind.signed
    expected = [code - (1 << kind.bits) if signed and code >> (kind.bits - 1) else code for code in codes]
    assert found.dtype == (np.int8 if signed else np.uint8)
    assert found.tolist() == [expected]


def test_few_rows_keep_their_scales(tmp_path: Path) -> None:
    """A constant of a few numbers would be written into the graph, where a placeholder is all zeros."""
    source = source_of(F32, rows=3)
    write_package(projection_of(source, WeightFormat.INT8_CHANNEL), tmp_path / "p.mlpackage")
    found = stored_weight(load_program(tmp_path / "p.mlpackage"), "y").rows(np.arange(3))
    assert np.abs(found - source.values).max() < 0.01 * np.abs(source.values).max()


@pytest.mark.parametrize("library", RUNNERS)
def test_palettes_of_an_unknown_shape_are_refused(tmp_path: Path, library: str) -> None:
    write_package(projection_of(source_of(F32), WeightFormat.LUT4), tmp_path / "p.mlpackage")
    program = load_program(tmp_path / "p.mlpackage")
    name = next(op for op in program.operations if op.kind == "constexpr_lut_to_dense").inputs["lut"][0]
    palettes = program.constants[name]
    assert isinstance(palettes, np.ndarray)
    dict_of = dict(program.constants) | {name: palettes.reshape(1, 3, 1, 1, 16, 1)}
    object.__setattr__(program, "constants", dict_of)
    with pytest.raises(ArtifactError, match="palettes of an unsupported shape"):
        RUNNERS[library](program, 1)


WIDTHS = (1, 2, 3, 4, 8, 16, 32, 64)
STAYS_FLOAT = 1e-3
"""The error of a product is below this, and above if its activations are rounded to int8."""


@pytest.mark.parametrize("weight_format", WeightFormat)
def test_a_product_runs_one_kernel_at_every_width(
    weight_format: WeightFormat, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Where OpenVINO rounds activations to int8, a row alone has the bits that it has among others.

    With more activations for a scale than a block of weights has numbers, it would compute floats instead,
    and a row alone by another kernel than two. Which kernel a processor has is its own affair.
    """
    rng = np.random.default_rng(0)
    source = ArraySource((0.05 * rng.normal(size=(256, 2048))).astype(np.float32), F32)
    write_package(projection_of(source, weight_format), tmp_path / "p.mlpackage")
    program = load_program(tmp_path / "p.mlpackage")
    runner = OpenVINORunner(program, 1)
    x = rng.normal(size=(1, 2048, max(WIDTHS), 1)).astype(np.float16)
    found = {
        width: runner.run({"x": np.ascontiguousarray(x[:, :, :width])})["out"][0, :, :, 0].astype(np.float32)
        for width in WIDTHS
    }
    exact = stored_weight(program, "y").rows(np.arange(256)) @ x[0, :, :, 0].astype(np.float32)
    errors = {
        width: np.linalg.norm(rows - exact[:, :width]) / np.linalg.norm(exact[:, :width])
        for width, rows in found.items()
    }
    rounds = {bool(error > STAYS_FLOAT) for error in errors.values()}
    assert len(rounds) == 1, errors
    assert max(errors.values()) < 0.015
    (is_int8,) = rounds
    assert weight_format in ACTIVATION_GROUPS or not is_int8
    equal = {width for width, rows in found.items() if (rows == found[max(WIDTHS)][:, :width]).all()}
    record_property("kernel", "int8" if is_int8 else "float")
    record_property("equal widths", sorted(equal))
    if is_int8:
        assert equal == {*WIDTHS}
