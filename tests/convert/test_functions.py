"""A package of several functions: what coremltools makes of two packages of one, with each weight once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import build
from graphs import layers
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec.convert.graph.builder import ct
from anespec.convert.options import ConvertOptions
from anespec.convert.package import WEIGHTS_FILE, write_package
from anespec.convert.planning.plan import PassesPlan, plan_passes
from anespec.manifests.channel_layout import DECLARED, ChannelLayout, channel_shape, laid_out
from anespec.manifests.schema import (
    MAIN,
    AttentionShape,
    Shapes,
    ShardFunction,
    Target,
    WeightFormat,
)
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.mil_package import FileReference, Function, read_model, read_package
from anespec.runtime.backends.portable.package_server import PackagePredictor
from anespec.system.errors import RequestError

ROWS = (4, 64)
LAYOUTS = (ChannelLayout.ROWS_THIRD, ChannelLayout.ROWS_LAST)
FUNCTIONS = tuple(
    ShardFunction(name=f"rows_{rows}", rows=rows, layout=layout)
    for rows, layout in zip(ROWS, LAYOUTS, strict=True)
)


def written(
    folder: Path, functions: Sequence[ShardFunction], weights: WeightFormat, t_max: int = 128
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shard = layers(AttentionShape.PER_KV_HEAD, range(2), weights, t_max=t_max, functions=tuple(functions))
    write_package(shard, folder / "shard.mlpackage")
    return folder / "shard.mlpackage"


def weight_bytes(package: Path) -> int:
    return next(package.rglob(WEIGHTS_FILE)).stat().st_size


@pytest.fixture(
    scope="module",
    params=slow_but(
        [WeightFormat.FP16, WeightFormat.INT8_CHANNEL, WeightFormat.LUT6], WeightFormat.INT8_CHANNEL
    ),
)
def weights(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def ours(weights: WeightFormat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("ours"), FUNCTIONS, weights)


@pytest.fixture(scope="module")
def theirs(weights: WeightFormat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two static packages, made one by coremltools."""
    folder = tmp_path_factory.mktemp("theirs")
    described = ct.utils.MultiFunctionDescriptor()
    for function in FUNCTIONS:
        one = written(folder / function.name, [function.model_copy(update={"name": MAIN})], weights)
        described.add_function(str(one), MAIN, function.name)
    described.default_function_name = FUNCTIONS[0].name
    ct.utils.save_multifunction(described, str(folder / "both.mlpackage"))
    return folder / "both.mlpackage"


@pytest.mark.slow
def test_the_description_is_the_one_that_save_multifunction_writes(ours: Path, theirs: Path) -> None:
    mine, its = (read_model(package)[0] for package in (ours, theirs))
    for model in (mine, its):
        model.description.ClearField("metadata")
    assert mine.description == its.description
    assert mine.description.defaultFunctionName == "rows_4"
    assert mine.specificationVersion == its.specificationVersion
    assert not mine.description.input, "everything is described per function"


def kinds(function: Function) -> list[str]:
    return [operation.kind for operation in function.operations]


@pytest.mark.slow
def test_the_functions_are_those_of_the_static_packages(ours: Path, theirs: Path) -> None:
    mine, its = read_package(ours).functions, read_package(theirs).functions
    assert set(mine) == set(its) == {"rows_4", "rows_64"}
    for name, function in mine.items():
        other = its[name]
        assert kinds(function) == kinds(other)
        for values in ("inputs", "states", "outputs"):
            assert getattr(function, values) == getattr(other, values)
            assert [function.types[v] for v in getattr(function, values)] == [
                other.types[v] for v in getattr(other, values)
            ]


def test_each_weight_is_written_once(ours: Path, weights: WeightFormat, tmp_path: Path) -> None:
    alone = written(tmp_path / "one", [ShardFunction(name=MAIN)], weights)
    assert weight_bytes(ours) == weight_bytes(alone)
    places = [
        {name: value for name, value in function.constants.items() if isinstance(value, FileReference)}
        for function in read_package(ours).functions.values()
    ]
    assert places[0]
    assert places[0] == places[1]


def test_a_function_computes_what_a_range_does_at_its_t(
    ours: Path, weights: WeightFormat, tmp_path: Path
) -> None:
    flexible = PackagePredictor(written(tmp_path / "range", [ShardFunction(name=MAIN)], weights))
    rng = np.random.default_rng(1)
    for function in FUNCTIONS:
        predictor = PackagePredictor(ours, function.name)
        inputs = {name: rng.normal(size=shape).astype(np.float16) for name, shape in predictor.inputs.items()}
        found = predictor.predict(inputs, predictor.make_state())
        declared = inputs | {"x": laid_out(inputs["x"], DECLARED)}
        expected = flexible.predict(declared, flexible.make_state())
        assert found["hidden"].tobytes() == expected["hidden"].tobytes()


def test_coremltools_opens_every_function_and_saves_the_package_again(ours: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in ours.rglob("*") if path.is_file()}
    assert [f.name for f in ct.utils.load_spec(str(ours)).description.functions] == ["rows_4", "rows_64"]
    for function in FUNCTIONS:
        opened = ct.models.MLModel(str(ours), skip_model_load=True, function_name=function.name)
        described = {each.name: each for each in opened.get_spec().description.functions}
        x = next(value for value in described[function.name].input if value.name == "x")
        assert tuple(x.type.multiArrayType.shape) == channel_shape(16, function.rows, function.layout)
        opened.save(str(tmp_path / f"{function.name}.mlpackage"))
        assert weight_bytes(tmp_path / f"{function.name}.mlpackage") == weight_bytes(ours)
    assert {path: path.read_bytes() for path in ours.rglob("*") if path.is_file()} == before


def test_a_static_package_has_no_shape_that_varies(tmp_path: Path) -> None:
    artifact = Artifact(
        build(
            write_gguf(tmp_path / "tiny.gguf", TinyModel()), tmp_path / "m.anespec", shapes="static", block=8
        ).path
    )
    manifest = artifact.manifest
    assert (manifest.shapes, manifest.widths) == (Shapes.STATIC, (8,))
    for shard in manifest.shards:
        model, _ = read_model(artifact.root / shard.path)
        assert not model.description.functions
        for value in model.description.input:
            array = value.type.multiArrayType
            assert array.WhichOneof("ShapeFlexibility") is None
            assert 8 in array.shape
        types = read_package(artifact.root / shard.path).functions[MAIN].types
        assert not [name for name, kind in types.items() if None in kind.shape]


def planned(**options: Any) -> PassesPlan:
    return plan_passes(ConvertOptions(target=Target.MAC, **options), 128)


def test_what_the_options_come_to() -> None:
    assert planned().functions == (ShardFunction(name=MAIN),)
    assert planned(shapes="static", block=2).functions == (ShardFunction(name=MAIN, rows=2),)
    assert planned(shapes="functions").functions == FUNCTIONS
    wider = planned(shapes="functions", block=8, prefill_block=32)
    assert [function.rows for function in wider.functions] == [8, 32]
    assert (wider.t_min, wider.t_max) == (8, 32)
    chosen = planned(shapes="functions", layout="rows_last")
    assert [function.layout for function in chosen.functions] == [ChannelLayout.ROWS_LAST] * 2
    assert planned(layout="rows_last").functions[0].layout is ChannelLayout.ROWS_LAST
    assert planned(block=1).shapes is Shapes.STATIC, "a range of one shape is none"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"prefill_block": 32}, "--prefill-block is for --shapes functions"),
        ({"shapes": "static", "prefill_block": 32}, "--prefill-block is for --shapes functions"),
        ({"shapes": "functions", "prefill_block": 4}, "must be more than the block"),
        ({"shapes": "functions", "prefill_block": 256}, "no more than the context"),
        ({"shapes": "functions", "block": 64}, "must be more than the block"),
        ({"shapes": "endless"}, "shapes"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        planned(**options)


@pytest.mark.slow
def test_a_ring_survives_the_widest_pass(families: Path, tmp_path: Path) -> None:
    gguf = families / "gemma3.gguf"
    narrow, wide = (
        Artifact(build(gguf, tmp_path / f"{shapes}.anespec", context=320, shapes=shapes).path).manifest
        for shapes in ("static", "functions")
    )
    (ring, longer) = (next(p for p in m.pools if p.window is not None) for m in (narrow, wide))
    assert ring.window == longer.window
    assert ring.region_slots >= ring.window + narrow.block
    assert longer.region_slots >= longer.window + 64 > ring.region_slots
