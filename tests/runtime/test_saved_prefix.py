"""A prompt's K/V in a file: what is written is what is read, and nothing else is."""

import hashlib
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.manifests.verdicts import RunEnvironment
from anespec.runtime.kv.saved_prefix import (
    MAGIC,
    SavedPrefix,
    UnusableError,
    is_prefix_file,
    read_prefix,
    write_prefix,
)
from anespec.system.errors import StorageError

HERE = RunEnvironment(backend="torch", library_version="1", machine="m", threads=1, artifact="a")
PREFIX = SavedPrefix(
    tokens=(5, 7, 9),
    first=(0, 1),
    values=(
        (np.arange(24, dtype=np.float16).reshape(1, 2, 3, 4), np.ones((1, 1, 3, 2), np.float16)),
        (np.full((1, 2, 2, 4), -0.0, np.float16),),
    ),
)
MOST = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A written prefix."""
    path = tmp_path / "prompt.kv"
    write_prefix(path, PREFIX, HERE)
    return path


def test_what_is_written_is_read_and_is_its_users_own(file: Path) -> None:
    again = read_prefix(file, HERE, MOST)
    assert (again.tokens, again.first) == (PREFIX.tokens, PREFIX.first)
    for pool, expected in zip(again.values, PREFIX.values, strict=True):
        assert [array.tobytes() for array in pool] == [array.tobytes() for array in expected]
        assert [array.shape for array in pool] == [array.shape for array in expected]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@given(data=st.data())
def test_no_damage_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damaged") / "prompt.kv"
    write_prefix(path, PREFIX, HERE)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "more"])):
        case "flip":
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del content[place:]
        case "more":
            content.insert(place, content[place] ^ 1)
    path.write_bytes(content)
    with pytest.raises(UnusableError):
        read_prefix(path, HERE, MOST)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"artifact": "b"}, "another model"),
        ({"backend": "openvino"}, "written on torch, and this is openvino"),
        ({"library_version": "2"}, "another version of torch"),
        ({"executor": 9}, "another version of torch"),
        ({"machine": "n"}, "another machine"),
        ({"threads": 2}, "another number of threads"),
    ],
)
def test_what_was_written_elsewhere_is_not_read(file: Path, other: dict[str, object], words: str) -> None:
    with pytest.raises(UnusableError, match=words):
        read_prefix(file, HERE.model_copy(update=other), MOST)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shapes": [[[1 << 53, 1 << 53, 0, 1 << 53]]]}, "damaged"),
        ({"shapes": [[[1 << 53] * 4]]}, "more than any prompt"),
        ({"circumstances": {**HERE.model_dump(), "backend": "\x1b[31m" * 1000}}, r"on \\x1b.{,400}…"),
        ({"circumstances": {**HERE.model_dump(), "library_version": "\x1b" * 1000}}, r"\(\\x1b.{,400}…"),
    ],
)
def test_a_header_whose_digest_is_right_may_lie(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    header: dict[str, object] = {"circumstances": HERE.model_dump(), "tokens": [1], "first": [0]}
    text = json.dumps({**header, "shapes": [[[1, 1, 1, 1]]], **change}).encode()
    content = MAGIC + len(text).to_bytes(8, "little") + text
    path = tmp_path / "prompt.kv"
    path.write_bytes(content + hashlib.sha256(content).digest())
    with pytest.raises(UnusableError, match=words) as refused:
        read_prefix(path, HERE, MOST)
    assert "\x1b" not in str(refused.value)


def test_another_users_file_is_not_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(UnusableError, match="belongs to another user"):
        read_prefix(file, HERE, MOST)


def test_no_more_is_read_than_a_prompt_takes(file: Path) -> None:
    with pytest.raises(UnusableError, match="more than any prompt"):
        read_prefix(file, HERE, PREFIX.bytes - 1)
    assert read_prefix(file, HERE, PREFIX.bytes).tokens == PREFIX.tokens


def test_other_files_are_told_apart(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    assert is_prefix_file(file)
    assert not is_prefix_file(other)
    assert not is_prefix_file(tmp_path / "none")
    with pytest.raises(StorageError):
        is_prefix_file(tmp_path)
    with pytest.raises(StorageError):
        write_prefix(tmp_path, PREFIX, HERE)
