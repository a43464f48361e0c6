"""Remembered hashes: read once, and again whenever a file may have changed."""

import hashlib
import os
import time
from pathlib import Path

import pytest

import anespec.manifests.known_hashes as known_hashes
from anespec.manifests.known_hashes import MEMORY_NAME, KnownHashes
from anespec.manifests.store import package_sha256
from anespec.system.errors import StorageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file; tests that ask for `settled` see it as old."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "shard.mlpackage"
    (path / "Data").mkdir(parents=True)
    (path / "Manifest.json").write_bytes(b"{}")
    (path / "Data" / "weight.bin").write_bytes(b"weights")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the memory lies; it is made when it is first written."""
    return tmp_path / "anespec" / "cache"


@pytest.fixture
def hashes(folder: Path) -> KnownHashes:
    return KnownHashes(folder)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_hashes, "SETTLED_SECONDS", -1.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was read for its hash, in order."""
    read: list[Path] = []
    for name in ("file_sha256", "package_sha256"):
        original = getattr(known_hashes, name)

        def counted(path: Path, original: object = original) -> str:
            read.append(path)
            assert callable(original)
            return str(original(path))

        monkeypatch.setattr(known_hashes, name, counted)
    return read


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.usefixtures("settled")
def test_a_hash_is_remembered_also_in_another_process(
    file: Path, hashes: KnownHashes, folder: Path, reads: list[Path]
) -> None:
    assert hashes.known(file) is None
    assert hashes.file(file) == sha256(b"one")
    assert hashes.known(file) == sha256(b"one")
    assert KnownHashes(folder).file(file) == sha256(b"one")
    assert reads == [file]


@pytest.mark.usefixtures("settled")
def test_a_package_is_remembered_until_a_file_of_it_changes(
    package: Path, folder: Path, reads: list[Path]
) -> None:
    first = KnownHashes(folder).package(package)
    assert first == KnownHashes(folder).package(package) == package_sha256(package)
    assert len(reads) == 1
    (package / "Data" / "weight.bin").write_bytes(b"weights!")
    assert KnownHashes(folder).package(package) == package_sha256(package) != first
    (package / "Data" / "weight.bin").rename(package / "Data" / "weights.bin")
    assert KnownHashes(folder).package(package) == package_sha256(package)
    assert len(reads) == 3


@pytest.mark.usefixtures("settled")
def test_again_reads_what_is_known_and_remembers_it(file: Path, folder: Path, reads: list[Path]) -> None:
    KnownHashes(folder).file(file)
    again = KnownHashes(folder, again=True)
    assert again.known(file) is None
    assert again.file(file) == KnownHashes(folder).file(file)
    assert reads == [file, file]


@pytest.mark.usefixtures("settled")
def test_again_mends_what_a_memory_has_wrong(file: Path, folder: Path) -> None:
    KnownHashes(folder).file(file)
    memory = folder / MEMORY_NAME
    memory.write_text(memory.read_text().replace(sha256(b"one"), sha256(b"two")))
    assert KnownHashes(folder).file(file) == sha256(b"two"), "a memory is believed"
    assert KnownHashes(folder, again=True).file(file) == sha256(b"one")
    assert KnownHashes(folder).file(file) == sha256(b"one")


@pytest.mark.usefixtures("settled")
def test_a_forged_time_hides_no_change(file: Path, hashes: KnownHashes) -> None:
    before = file.stat()
    hashes.file(file)
    time.sleep(0.02)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert hashes.known(file) is None
    assert hashes.file(file) == sha256(b"two")


def test_a_file_that_has_just_changed_is_not_remembered(file: Path, hashes: KnownHashes) -> None:
    hashes.file(file)
    assert hashes.known(file) is None


def test_a_file_that_changes_while_it_is_read_is_refused(
    file: Path, hashes: KnownHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing(path: Path) -> str:
        path.write_bytes(b"one and more")
        return sha256(b"one")

    monkeypatch.setattr(known_hashes, "file_sha256", growing)
    with pytest.raises(StorageError, match="changes while it is read"):
        hashes.file(file)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff\x00", b'{"known": [1]}', b'{"known": {"a": "b"}}', b"[" * 100_000, b" " * (1 << 21)],
    ids=["empty", "list", "no text", "other type", "no hashes", "deep", "large"],
)
def test_damaged_memory_counts_as_none(file: Path, folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / MEMORY_NAME).write_bytes(content)
    assert KnownHashes(folder).known(file) is None
    assert KnownHashes(folder).file(file) == sha256(b"one")
    assert KnownHashes(folder).known(file) == sha256(b"one")


@pytest.mark.usefixtures("settled")
def test_where_nothing_can_be_remembered_files_are_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "anespec").symlink_to(tmp_path / "elsewhere")
    assert KnownHashes(tmp_path / "anespec").file(file) == sha256(b"one")
    monkeypatch.setenv("XDG_CACHE_HOME", "not absolute")
    monkeypatch.setenv("HOME", "not absolute")
    assert KnownHashes().file(file) == sha256(b"one")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("settled")
def test_a_memory_that_is_a_link_is_neither_read_nor_written_through(
    file: Path, folder: Path, tmp_path: Path
) -> None:
    KnownHashes(folder).file(file)
    forged = tmp_path / "forged.json"
    (folder / MEMORY_NAME).rename(forged)
    forged.write_text(forged.read_text().replace(sha256(b"one"), sha256(b"two")))
    (folder / MEMORY_NAME).symlink_to(forged)
    before = forged.read_text()
    assert KnownHashes(folder).file(file) == sha256(b"one")
    assert forged.read_text() == before


@pytest.mark.usefixtures("settled")
def test_the_oldest_are_forgotten(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_hashes, "MOST_REMEMBERED", 3)
    files = [tmp_path / str(number) for number in range(5)]
    for file in files:
        file.write_text(file.name)
        KnownHashes(folder).file(file)
    known = KnownHashes(folder)
    assert [known.known(file) is not None for file in files] == [False, False, True, True, True]


def test_the_longest_memory_can_be_read() -> None:
    entry = len('"":"",') + 2 * len(sha256(b""))
    assert known_hashes.MOST_REMEMBERED * entry + 100 < known_hashes.LARGEST_MEMORY
