"""A model in parts, as a person has it: every verb takes its first part for the whole."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from gguf_parts import write_parts

import anespec
from anespec.cli.inspect.verb import inspect
from anespec.convert.options import ConvertOptions
from anespec.convert.source.model import SourceModel
from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.gguf.parts import part_paths
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact, model_bytes, model_sha256
from anespec.models.conversion import default_output
from anespec.models.model_path import _paths, model_name
from anespec.system.errors import ArtifactError, GGUFError
from anespec.validate.gates import find_source
from anespec.validate.selftest.inputs.trained import beginning_of
from anespec.validate.tuning.truncated_gguf import first_layers

CPU = ConvertOptions(target=Target.CPU, context=64)


@pytest.fixture
def parts(gguf: Path, tmp_path: Path) -> Path:
    return write_parts(gguf, tmp_path, 2, stem="tiny")


def test_inspect_says_how_many(parts: Path) -> None:
    found = json.loads(CliRunner().invoke(inspect, [str(parts), "--json"]).output)
    assert (found["parts"], found["bytes"], found["convertible"]) == (2, model_bytes(parts), True)
    assert " in 2 parts)" in CliRunner().invoke(inspect, [str(parts)], terminal_width=200).output


def test_the_source_is_recorded_with_all_its_parts(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    parts.symlink_to(parts.rename(tmp_path / "blobs" / "hash"))
    with GGUFFile(parts) as file:
        source = SourceModel(file).source()
    assert (source.sha256, source.bytes) == (model_sha256(parts), model_bytes(parts))
    assert Path(source.read_from) == parts, "not what it is a link to, beside which no part lies"


@pytest.mark.slow
def test_a_conversion_is_that_of_the_whole(gguf: Path, parts: Path, tmp_path: Path) -> None:
    first = anespec.convert_model(parts, tmp_path / "a.anespec", CPU).path
    whole = anespec.convert_model(gguf, tmp_path / "b.anespec", CPU).path
    found, expected = (Artifact(path).manifest for path in (first, whole))
    assert [shard.sha256 for shard in found.shards] == [shard.sha256 for shard in expected.shards]
    assert found.tokens == expected.tokens
    assert (found.source.sha256, found.source.bytes) == (model_sha256(parts), model_bytes(parts))
    assert find_source(Artifact(first)) == parts.resolve()
    last = part_paths(parts)[-1]
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"the gates compare with tiny-00001-of-00002.gguf"):
        find_source(Artifact(first))


def test_names_leave_the_number_of_the_part_out(parts: Path) -> None:
    assert model_name(parts) == "tiny"
    assert default_output(parts) == Path("tiny.anespec")
    assert [Path(text).name for text in _paths(f"{parts.parent}/tiny")] == ["tiny-00001-of-00002.gguf"]


def test_another_part_is_refused_by_name(parts: Path) -> None:
    with pytest.raises(GGUFError, match=r"is part 2 of 2; give the first, tiny-00001-of-00002.gguf"):
        anespec.inspect(part_paths(parts)[1])


def test_the_first_layers_are_taken_from_all_parts(parts: Path, tmp_path: Path) -> None:
    path, count = first_layers(parts, 1, 4, lambda count: tmp_path / f"{count}.gguf", Target.CPU)
    assert (path.name, count) == ("1.gguf", 1)


def test_the_self_test_takes_all_parts(parts: Path, tmp_path: Path) -> None:
    path = beginning_of(parts.resolve(), "model", 1, tmp_path / "models", Target.CPU)
    assert path.name == "model-1.gguf"
    assert sorted(link.name for link in (tmp_path / "models").iterdir() if link.is_symlink()) == [
        "model-00001-of-00002.gguf",
        "model-00002-of-00002.gguf",
    ]


@pytest.mark.slow
def test_a_second_model_that_drafts_may_be_in_parts(tmp_path: Path) -> None:
    """The cached conversion of `load` and of the draft are both of the whole."""
    parts = write_parts(model_path(), tmp_path)
    with anespec.load(parts, draft=parts, context=64, progress=False) as model:
        said = model.generate("def area(", max_tokens=8).text
    with anespec.load(model_path(), context=64, progress=False) as model:
        assert model.generate("def area(", max_tokens=8).text == said
