"""A range's default T and reshape hint: written into packages and manifests, and read from old ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.convert.graph.builder import ct
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import plan_passes
from anespec.convert.planning.report import first_use
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint
from anespec.manifests.schema import Manifest, Shapes, Target
from anespec.manifests.store import MANIFEST_NAME, Artifact
from anespec.runtime.backends.portable.mil_package import read_model
from anespec.system.errors import RequestError

LATER_FIELDS = ("head_functions", "range_default", "reshape_hint")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", TinyModel())


def default_rows(artifact: Artifact) -> set[int]:
    """T in the default shape of every shard's hidden state."""
    found = set()
    for shard in artifact.manifest.shards:
        model, _ = read_model(artifact.root / shard.path)
        (x,) = (each for each in model.description.input if each.name == "x")
        assert [size.upperBound for size in x.type.multiArrayType.shapeRange.sizeRanges][2] == 4
        found.add(int(x.type.multiArrayType.shape[2]))
    return found


@pytest.mark.parametrize("target", [Target.MAC, Target.IPHONE])
def test_a_range_is_the_one_that_was_measured(gguf: Path, tmp_path: Path, target: Target) -> None:
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", target=target).path)
    manifest = artifact.manifest
    assert (manifest.shapes, manifest.range_default) == (Shapes.RANGE, RangeDefault.ONE)
    assert manifest.reshape_hint is ReshapeHint.NONE
    assert manifest.widths == (1, 4)
    assert manifest.default_rows == 1
    assert default_rows(artifact) == {1}


def test_the_default_and_the_hint_can_be_chosen(gguf: Path, tmp_path: Path) -> None:
    done = build(gguf, tmp_path / "m.anespec", range_default="block", reshape_hint="infrequent")
    artifact = Artifact(done.path)
    assert artifact.manifest.reshape_hint is ReshapeHint.INFREQUENT
    assert artifact.manifest.default_rows == 4
    assert default_rows(artifact) == {4}


@pytest.mark.parametrize("shapes", [Shapes.STATIC, Shapes.FUNCTIONS])
@pytest.mark.parametrize("choice", [{"range_default": "1"}, {"reshape_hint": "frequent"}])
def test_they_are_for_ranges_alone(shapes: Shapes, choice: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="are for --shapes range"):
        plan_passes(ConvertOptions(target=Target.MAC, shapes=shapes, **choice), 2048)


def test_an_old_manifest_opens_with_what_it_was_built_with(gguf: Path, tmp_path: Path) -> None:
    """Its packages default to the block, were loaded with a hint, and have heads like its layers."""
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", range_default="block").path)
    place = artifact.root / MANIFEST_NAME
    facts = {name: value for name, value in json.loads(place.read_text()).items() if name not in LATER_FIELDS}
    place.write_text(json.dumps(facts))
    old = Artifact(artifact.root).manifest
    assert (old.range_default, old.reshape_hint) == (RangeDefault.BLOCK, ReshapeHint.INFREQUENT)
    assert old.functions_of(old.head_shards[0]) == old.functions
    assert old.default_rows == 4


def test_heads_of_functions_run_a_block_alone(gguf: Path, tmp_path: Path) -> None:
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", shapes="functions", head_shards=2).path)
    manifest = artifact.manifest
    assert manifest.widths == (4, 64)
    assert manifest.head_widths == (4,)
    for shard in manifest.head_shards:
        model = ct.utils.load_spec(str(artifact.root / shard.path))
        assert not model.description.functions
        assert [list(each.type.multiArrayType.shape)[2] for each in model.description.input] == [4]
        assert manifest.loaded_name(shard, manifest.functions_of(shard)[0]) is None
    layers = manifest.layer_shards[0]
    assert [manifest.loaded_name(layers, each) for each in manifest.functions] == ["rows_4", "rows_64"]


@pytest.mark.parametrize(
    ("heads", "named"),
    [
        ([{"name": "main", "rows": 64}], "the first function of heads takes 64 rows"),
        ([{"name": "main", "rows": 4}, {"name": "b", "rows": 8}], "the functions of heads take 4 and 8 rows"),
        ([{"name": "main", "rows": 4}, {"name": "main", "rows": 64}], "two functions of heads are called"),
    ],
)
def test_functions_of_heads_that_mean_nothing_are_refused(
    gguf: Path, tmp_path: Path, heads: list[dict[str, Any]], named: str
) -> None:
    path = build(gguf, tmp_path / "m.anespec", shapes="functions").path
    facts = Artifact(path).manifest.model_dump(mode="json") | {"head_functions": heads}
    with pytest.raises(ValueError, match=named):
        Manifest.model_validate(facts)


def test_functions_that_mean_nothing_are_refused(gguf: Path, tmp_path: Path) -> None:
    facts = Artifact(build(gguf, tmp_path / "m.anespec", shapes="functions").path).manifest.model_dump(
        mode="json"
    )
    first, *_ = facts["functions"]
    for functions, named in (
        ([first, first], "two functions are called"),
        ([first | {"rows": None}], "a function takes any number of rows, but shapes are functions"),
    ):
        with pytest.raises(ValueError, match=named):
            Manifest.model_validate(facts | {"functions": functions})


def test_what_is_known_of_the_first_use_is_said_with_its_grade() -> None:
    said = first_use(Target.MAC, Shapes.RANGE, (1, 4))
    assert said is not None
    assert "for each of 1 and 4 rows: 112 s for 1 and 133 s for 4, measured once, by others (B: " in said
    assert "No measurement is known" in (first_use(Target.IPHONE, Shapes.STATIC, (4,)) or "")
    assert first_use(Target.CPU, Shapes.RANGE, (1, 4)) is None
