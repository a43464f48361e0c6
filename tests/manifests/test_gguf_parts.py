"""A GGUF in parts is one model, under the name of its first part; what is missing or foreign is named."""

import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf_parts import part_name, write_parts
from tiny_model import TinyModel, write_gguf

from anespec.gguf.container import GGUFFile
from anespec.gguf.parts import first_part, part_paths, stem_of
from anespec.manifests.store import file_sha256, model_bytes, model_sha256
from anespec.system.errors import AnespecError, GGUFError, StorageError


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "whole.gguf")


def refusal(path: Path, kind: type[AnespecError] = GGUFError) -> str:
    with pytest.raises(kind) as caught:
        GGUFFile(path)
    (line,) = str(caught.value).splitlines()
    return line


def test_the_first_part_stands_for_all(whole: Path, tmp_path: Path) -> None:
    first = write_parts(whole, tmp_path)
    with GGUFFile(whole) as one, GGUFFile(first) as parts:
        assert [path.name for path in parts.paths] == [part_name(number, 3) for number in (1, 2, 3)]
        assert parts.tensors.keys() == one.tensors.keys()
        for info in one:
            np.testing.assert_array_equal(parts.raw(info.name), one.raw(info.name))
            parts.forget(info.name)
        assert parts.text("tokenizer.ggml.model") == "llama"
        assert parts.nbytes == model_bytes(first) == sum(path.stat().st_size for path in parts.paths)


def test_parts_may_be_links_to_files_with_other_names(whole: Path, tmp_path: Path) -> None:
    """As in the cache of the Hugging Face hub."""
    (blobs := tmp_path / "blobs").mkdir()
    (links := tmp_path / "links").mkdir()
    first = write_parts(whole, blobs)
    for number, path in enumerate(part_paths(first)):
        (links / path.name).symlink_to(path.rename(blobs / f"hash{number}"))
    with GGUFFile(links / first.name) as file:
        assert file.tensors.keys() == GGUFFile(whole).tensors.keys()


def test_the_hash_covers_all_parts(whole: Path, tmp_path: Path) -> None:
    first = write_parts(whole, tmp_path)
    before = model_sha256(first)
    assert before != file_sha256(first)
    assert model_sha256(whole) == file_sha256(whole)
    last = bytearray(part_paths(first)[2].read_bytes())
    last[-1] ^= 1
    part_paths(first)[2].write_bytes(last)
    assert model_sha256(first) != before


def test_names() -> None:
    assert stem_of("a-00001-of-00002.gguf") == stem_of("a-00001-of-00001.gguf") == stem_of("a.gguf") == "a"
    assert first_part("f/a-00002-of-00002.gguf") == "f/a-00001-of-00002.gguf"
    for none in ("a-00003-of-00002.gguf", "a-00000-of-00002.gguf", "a-1-of-2.gguf", "a.gguf"):
        assert first_part(none) == none
        assert part_paths(Path(none)) == (Path(none),)
    assert part_paths(Path("a-00001-of-00001.gguf")) == (Path("a-00001-of-00001.gguf"),)


def test_another_part_names_the_first(whole: Path, tmp_path: Path) -> None:
    first = write_parts(whole, tmp_path)
    said = refusal(first.with_name(part_name(2, 3)))
    assert said.endswith("is part 2 of 3; give the first, m-00001-of-00003.gguf")


def test_missing_parts_are_named(whole: Path, tmp_path: Path) -> None:
    first = write_parts(whole, tmp_path)
    first.with_name(part_name(2, 3)).unlink()
    said = "m-00002-of-00003.gguf is missing beside it; download all 3 parts into one folder"
    assert refusal(first).endswith(said)
    first.with_name(part_name(3, 3)).unlink()
    assert "m-00002-of-00003.gguf and m-00003-of-00003.gguf are missing" in refusal(first)
    first.unlink()
    assert "no such file" in refusal(first, StorageError)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({2: {"split.count": 4}}, "its metadata (split.count) '4'; rename it"),
        ({1: {"split.count": None}}, "its metadata (split.count) that it is no part; rename it"),
        ({2: {"split.no": 2}}, "says that it is part 2, and its metadata (split.no '2') another"),
        ({3: {"split.no": "x"}}, "split.no"),
        ({2: {"split.count": [2, 2]}}, "split.count"),
        ({n: {"split.tensors.count": [2, 2]} for n in (1, 2, 3)}, "split.tensors.count"),
        ({3: {"split.tensors.count": 7}}, "is a part of another model than m-00001-of-00003.gguf"),
        ({2: {"general.architecture": "qwen2"}}, "since 'general.architecture' differs"),
        ({n: {"split.tensors.count": 99} for n in (1, 2, 3)}, "(split.tensors.count) says '99'"),
    ],
)
def test_foreign_parts_are_named(
    whole: Path, tmp_path: Path, keys: dict[int, dict[str, object]], said: str
) -> None:
    assert said in refusal(write_parts(whole, tmp_path, keys=keys))


def test_texts_of_all_lengths_are_compared_as_they_are(whole: Path, tmp_path: Path) -> None:
    """Beside a long text, thousands of empty ones take no more memory than they have bytes."""
    texts = ["x" * 20_000, *[""] * 20_000]
    first = write_parts(whole, tmp_path, keys={n: {"tokenizer.ggml.merges": texts} for n in (1, 2, 3)})
    tracemalloc.start()
    with GGUFFile(first):
        assert tracemalloc.get_traced_memory()[1] < 64_000_000
    tracemalloc.stop()


def test_a_part_of_another_split_is_named(whole: Path, tmp_path: Path) -> None:
    (there := tmp_path / "there").mkdir()
    first = write_parts(whole, tmp_path)
    other = write_gguf(tmp_path / "other.gguf", TinyModel(layers=1))
    write_parts(other, there)
    shutil.copy(there / part_name(2, 3), tmp_path)
    assert "is a part of another model" in refusal(first)


def test_a_tensor_in_two_parts_is_named(whole: Path, tmp_path: Path) -> None:
    first = write_parts(whole, tmp_path, also={3: "token_embd.weight"})
    assert "'token_embd.weight' is also in m-00001-of-00003.gguf" in refusal(first)


def test_a_part_under_another_name_is_named(whole: Path, tmp_path: Path) -> None:
    first = write_parts(whole, tmp_path)
    renamed = first.rename(tmp_path / "model.gguf")
    assert "is one of 3 parts, but has not the name of one; name them model-00001-of-" in refusal(renamed)


def test_a_count_beyond_the_limit_is_refused_before_any_part_is_sought(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / part_name(1, 60000))
    assert "has 60000 parts, and at most 512 can be read; join the parts" in refusal(path)


def test_parts_that_are_no_files(whole: Path, tmp_path: Path) -> None:
    first = write_parts(whole, tmp_path)
    second = first.with_name(part_name(2, 3))
    second.unlink()
    second.symlink_to(second.name)
    assert "is missing" in refusal(first)
    second.unlink()
    second.symlink_to(first.name)
    assert "(split.no '0') another" in refusal(first)
    second.unlink()
    os.mkfifo(second)
    assert "is missing" in refusal(first)
    second.unlink()
    second.write_bytes(b"")
    assert "not a GGUF file" in refusal(first)
