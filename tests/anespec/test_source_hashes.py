"""Remembered hashes: read once, and again whenever the file may have changed."""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import anespec.source_hashes as source_hashes
from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder
from anespec.source_hashes import SourceHashes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file; tests that ask for `settled` see it as old."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def hashes(tmp_path: Path) -> Iterator[SourceHashes]:
    (tmp_path / "cache").mkdir()
    with Folder.open(tmp_path / "cache") as folder:
        yield SourceHashes(folder)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_hashes, "SETTLED_SECONDS", -1.0)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.usefixtures("settled")
def test_a_hash_is_remembered_also_under_another_name(file: Path, hashes: SourceHashes) -> None:
    assert hashes.known(file) is None
    assert hashes.read(file) == sha256(b"one")
    assert hashes.known(file) == sha256(b"one")
    assert SourceHashes(hashes._folder).known(file) == sha256(b"one")


@pytest.mark.usefixtures("settled")
def test_a_forged_time_hides_no_change(file: Path, hashes: SourceHashes) -> None:
    before = file.stat()
    hashes.read(file)
    time.sleep(0.02)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert hashes.known(file) is None
    assert hashes.read(file) == sha256(b"two")


def test_a_file_that_has_just_changed_is_not_remembered(file: Path, hashes: SourceHashes) -> None:
    hashes.read(file)
    assert hashes.known(file) is None


def test_a_file_that_changes_while_it_is_read_is_refused(
    file: Path, hashes: SourceHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing(path: Path) -> str:
        path.write_bytes(b"one and more")
        return sha256(b"one")

    monkeypatch.setattr(source_hashes, "file_sha256", growing)
    with pytest.raises(StorageError, match="changes while it is read"):
        hashes.read(file)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\x00", b'{"files": [1]}', b"[" * 100_000])
def test_damaged_memory_counts_as_none(
    file: Path, hashes: SourceHashes, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "cache" / "hashes.json").write_bytes(content)
    assert hashes.known(file) is None
    assert hashes.read(file) == sha256(b"one")
    assert hashes.known(file) == sha256(b"one")


@pytest.mark.usefixtures("settled")
def test_the_oldest_are_forgotten(
    tmp_path: Path, hashes: SourceHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_hashes, "MOST_REMEMBERED", 3)
    files = [tmp_path / str(number) for number in range(5)]
    for file in files:
        file.write_text(file.name)
        hashes.read(file)
    assert [hashes.known(file) is not None for file in files] == [False, False, True, True, True]
