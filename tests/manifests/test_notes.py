"""Verdicts on artifacts that cannot be written lie in the user's cache folder, and nowhere else."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anespec.manifests import notes
from anespec.manifests.notes import Notes
from anespec.manifests.verdicts import (
    ExactnessFile,
    ExactnessVerdict,
    Invariance,
    InvarianceVerdict,
    RunEnvironment,
)
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import cache_folder

FINGERPRINT = "ab" * 32
HERE = RunEnvironment(backend="torch", library_version="2", machine="one", threads=2, artifact=FINGERPRINT)
IS_ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An artifact's folder."""
    folder = tmp_path / "m.anespec"
    folder.mkdir()
    return folder


def verdict(form: str = "quick", unequal: int = 0, here: RunEnvironment = HERE) -> ExactnessVerdict:
    return ExactnessVerdict(
        circumstances=here,
        form=form,
        invariances=tuple(
            InvarianceVerdict(invariance=each, cases=3, unequal=unequal, largest_difference=0)
            for each in Invariance
        ),
    )


def by_mount(root: Path) -> Callable[[], object]:
    """A read-only bind mount, which holds for root, too."""
    for command in (("mount", "--bind", root, root), ("mount", "-o", "remount,ro,bind", root)):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["umount", str(root)], capture_output=True, check=False)
            pytest.skip(f"needs the right to mount ({done.stderr.strip()})")
    return lambda: subprocess.run(["umount", str(root)], check=True)


def by_mode(root: Path) -> Callable[[], object]:
    """Permissions, which do not hold for root."""
    if IS_ROOT:
        pytest.skip("needs a user other than root")
    root.chmod(0o555)
    return lambda: root.chmod(0o755)


def by_owner(root: Path) -> Callable[[], object]:
    """Another user's folder."""
    if not IS_ROOT:
        pytest.skip("needs root, to give a folder away")
    os.chown(root, 12345, 12345)
    return lambda: os.chown(root, 0, 0)


@pytest.fixture(params=[by_mount, by_mode, by_owner], ids=["mount", "mode", "owner"])
def read_only(request: pytest.FixtureRequest, root: Path) -> Iterator[Path]:
    """An artifact that cannot be written, in which another's verdict lies."""
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict(here=HERE.model_copy(update={"threads": 9})))
    give_back = request.param(root)
    try:
        yield root
    finally:
        give_back()


def test_what_cannot_be_written_there_is_kept_for_this_user_alone(read_only: Path, cache: Path) -> None:
    before = sorted(read_only.rglob("*"))
    Notes(read_only, FINGERPRINT).record(ExactnessFile, verdict())
    kept = cache / "verdicts" / FINGERPRINT
    assert Notes(read_only, FINGERPRINT).write("report.html", b"<p>") == kept / "report.html"
    assert sorted(read_only.rglob("*")) == before
    assert sorted(path.name for path in kept.iterdir()) == ["exactness.json", "report.html"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    found = Notes(read_only, FINGERPRINT).read(ExactnessFile)
    assert [each.circumstances.threads for each in found.verdicts] == [9, 2]
    # Bound to what the artifact is.
    other = Notes(read_only, "cd" * 32).read(ExactnessFile)
    assert [each.circumstances.threads for each in other.verdicts] == [9]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_every_refusal_of_a_file_system_leads_to_the_cache(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_below(root, number, monkeypatch)
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict())
    assert Notes(root, FINGERPRINT).read(ExactnessFile).find(HERE) is not None
    assert (cache / "verdicts" / FINGERPRINT / "exactness.json").is_file()
    assert not (root / "gates" / "exactness.json").exists()


def test_a_full_disk_is_an_error_and_no_read_only_place(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_below(root, errno.ENOSPC, monkeypatch)
    with pytest.raises(StorageError, match="gates: cannot be written"):
        Notes(root, FINGERPRINT).record(ExactnessFile, verdict())
    assert not cache.exists()


def refuse_below(root: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the file system refuse new files below a folder."""
    replace = Folder.replace

    def refuse(folder: Folder, name: str, content: bytes, *, durable: bool = True) -> None:
        if folder.path.is_relative_to(root):
            raise OSError(number, os.strerror(number))
        replace(folder, name, content, durable=durable)

    monkeypatch.setattr(Folder, "replace", refuse)


def test_the_users_own_verdict_holds_before_the_artifacts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict(unequal=1))
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "is_own", lambda folder: folder.path != root)
        Notes(root, FINGERPRINT).record(ExactnessFile, verdict("full"))
    shutil.rmtree(root / "gates")
    (root / "gates").mkdir()
    (root / "gates" / "exactness.json").write_text(
        ExactnessFile(verdicts=(verdict(unequal=2),)).model_dump_json()
    )
    found = Notes(root, FINGERPRINT).read(ExactnessFile).find(HERE)
    assert found is not None
    assert (found.form, found.allows_speculation) == ("full", True)


def test_a_new_verdict_in_the_artifact_replaces_the_one_in_the_cache(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "is_own", lambda folder: folder.path != root)
        Notes(root, FINGERPRINT).record(ExactnessFile, verdict())
    assert not (root / "gates").exists()
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict(unequal=1))
    assert (root / "gates" / "exactness.json").is_file()
    found = Notes(root, FINGERPRINT).read(ExactnessFile).find(HERE)
    assert found is not None
    assert not found.allows_speculation


def test_a_full_verdict_of_a_read_only_artifact_stays_before_a_quick_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict("full"))
    monkeypatch.setattr(Folder, "is_own", lambda folder: folder.path != root)
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict("quick"))
    found = Notes(root, FINGERPRINT).read(ExactnessFile).find(HERE)
    assert found is not None
    assert found.form == "full"
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict("quick", unequal=1))
    found = Notes(root, FINGERPRINT).read(ExactnessFile).find(HERE)
    assert found is not None
    assert found.form == "quick"


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to give a folder away")
def test_links_of_another_user_are_not_written_through(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (root / "gates").symlink_to(mine)
    (root / "report.html").symlink_to(mine / "page")
    os.chown(root, 12345, 12345)
    Notes(root, FINGERPRINT).record(ExactnessFile, verdict())
    Notes(root, FINGERPRINT).write("report.html", b"<p>")
    assert not list(mine.iterdir())
    assert Notes(root, FINGERPRINT).read(ExactnessFile).find(HERE) is not None


def test_a_link_in_the_cache_is_refused(root: Path, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "exactness.json").write_text(ExactnessFile(verdicts=(verdict(),)).model_dump_json())
    (cache / "verdicts").mkdir(parents=True)
    (cache / "verdicts" / FINGERPRINT).symlink_to(tmp_path / "other")
    assert Notes(root, FINGERPRINT).read(ExactnessFile).verdicts == ()


def test_where_nothing_can_be_written_both_places_are_named(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "is_own", lambda folder: folder.path != root)
    cache.parent.mkdir()
    cache.write_text("")
    with pytest.raises(
        StorageError, match=r"m\.anespec: belongs to another user.*your cache folder cannot be used either"
    ):
        Notes(root, FINGERPRINT).record(ExactnessFile, verdict())
    assert notes.OWN_FOLDER == "verdicts"
