"""What others may have laid among files: nothing outside is read or changed because of it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anespec.system import safe_files
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder, open_file, read_bounded, write_atomically

Trap = Callable[[Path, Path], None]


def _link(name: Path, mine: Path) -> None:
    name.symlink_to(mine)


def _hard_link(name: Path, mine: Path) -> None:
    name.hardlink_to(mine)


def _pipe(name: Path, mine: Path) -> None:
    os.mkfifo(name)


def _folder(name: Path, mine: Path) -> None:
    name.mkdir()
    (name / "kept").touch()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file outside the folder, of whoever runs the command."""
    path = tmp_path / "mine.txt"
    path.write_text("mine")
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of somebody else's making."""
    path = tmp_path / "theirs"
    path.mkdir()
    return path


@pytest.mark.parametrize("trap", [_link, _pipe, _folder])
def test_what_is_no_file_is_not_replaced(place: Path, mine: Path, trap: Trap) -> None:
    trap(place / "a.json", mine)
    before = (place / "a.json").lstat()
    with pytest.raises(StorageError, match=r"a\.json: is a (link|pipe or a device|folder)"):
        write_atomically(place / "a.json", "new")
    assert (place / "a.json").lstat().st_ino == before.st_ino
    assert mine.read_text() == "mine"
    assert [path.name for path in place.iterdir()] == ["a.json"]


def test_another_name_of_a_replaced_file_keeps_its_content(place: Path, mine: Path) -> None:
    _hard_link(place / "a.json", mine)
    write_atomically(place / "a.json", "new")
    assert (place / "a.json").read_text() == "new"
    assert mine.read_text() == "mine"


def test_names_of_unfinished_files_cannot_be_guessed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    replace = os.replace

    def note(old: str, new: str, **folders: int) -> None:
        seen.append(old)
        replace(old, new, **folders)

    monkeypatch.setattr(os, "replace", note)
    for _ in range(2):
        write_atomically(place / "a.json", "new")
    assert len(set(seen)) == 2
    assert all(len(name) > 32 and "a.json" not in name for name in seen)


def test_a_failed_write_leaves_the_old_file_and_no_other(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(place / "a.json", "old")

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_atomically(place / "a.json", "new")
    assert {path.name: path.read_text() for path in place.iterdir()} == {"a.json": "old"}


@pytest.mark.parametrize("trap", [_link, _hard_link, _pipe, _folder])
def test_a_new_file_is_new(place: Path, mine: Path, trap: Trap) -> None:
    trap(place / "new", mine)
    with Folder.open(place) as folder, pytest.raises(FileExistsError), folder.create("new"):
        pass
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("trap", [_link, _hard_link, _pipe, _folder])
def test_an_own_file_is_nothing_that_others_laid_there(place: Path, mine: Path, trap: Trap) -> None:
    trap(place / "partial", mine)
    with Folder.open(place) as folder, pytest.raises((StorageError, IsADirectoryError)):
        folder.own_file("partial")
    assert mine.read_text() == "mine"


def test_an_own_file_is_gone_on_with(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Folder.open(place) as folder:
        for text in (b"one", b"two"):
            with folder.own_file("partial") as stream:
                stream.seek(0, os.SEEK_END)
                stream.write(text)
        assert (place / "partial").read_bytes() == b"onetwo"
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        with pytest.raises(StorageError, match="belongs to another user"):
            folder.own_file("partial")


@pytest.mark.parametrize("trap", [_link, _hard_link, _pipe])
def test_a_link_takes_a_name_and_follows_none(place: Path, mine: Path, trap: Trap) -> None:
    trap(place / "model", mine)
    with Folder.open(place) as folder:
        folder.replace_link("model", "../elsewhere")
    assert (place / "model").readlink() == Path("../elsewhere")
    assert mine.read_text() == "mine"
    assert [path.name for path in place.iterdir()] == ["model"]


def test_no_folder_on_the_way_is_a_link(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.json").write_text("secret")
    (place / "gates").symlink_to(elsewhere)
    with Folder.open(place) as folder:
        for reach in (
            lambda: folder.folder("gates"),
            lambda: folder.folder("gates", create=True),
            lambda: folder.create("gates/b.json").__enter__(),
            lambda: folder.read("gates/a.json", 100),
        ):
            with pytest.raises(StorageError, match=r"theirs/gates: is a link"):
                reach()
    assert [path.name for path in elsewhere.iterdir()] == ["a.json"]
    with pytest.raises(StorageError, match="is a link"):
        Folder.open(place / "gates", follow=False)


@pytest.mark.parametrize("trap", [_link, _pipe])
def test_a_file_below_is_read_only_where_it_is_one(place: Path, mine: Path, trap: Trap) -> None:
    trap(place / "a.json", mine)
    with Folder.open(place) as folder, pytest.raises(StorageError, match=r"is a link|is a pipe"):
        folder.read("a.json", 100)


def test_removing_does_not_follow(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").touch()
    (place / "link").symlink_to(elsewhere)
    (place / "folder").mkdir()
    (place / "folder" / "link").symlink_to(elsewhere)
    with Folder.open(place) as folder:
        for name in ("link", "folder", "missing"):
            folder.remove(name)
    assert not list(place.iterdir())
    assert (elsewhere / "a").exists()


def test_traps_are_removed_and_files_kept(place: Path, mine: Path) -> None:
    (place / "shards").mkdir()
    (place / "shards" / "weight.bin").write_text("kept")
    for name, trap in (("link", _link), ("hard", _hard_link), ("pipe", _pipe)):
        trap(place / "shards" / name, mine)
    (place / "up").symlink_to(place.parent)
    with Folder.open(place) as folder:
        folder.remove_traps()
    assert [path.relative_to(place).as_posix() for path in sorted(place.rglob("*"))] == [
        "shards",
        "shards/weight.bin",
    ]
    assert mine.read_text() == "mine"


def test_a_folder_of_another_user_is_not_taken_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Folder.open(place) as folder:
        folder.require_own()
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
        with pytest.raises(StorageError, match="belongs to another user"):
            folder.require_own()


def test_a_file_that_a_person_names_may_be_a_link(place: Path, mine: Path) -> None:
    _link(place / "a", mine)
    assert read_bounded(place / "a", 4) == b"mine"
    with pytest.raises(StorageError, match="is larger than 3 B"):
        read_bounded(place / "a", 3)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/tty"])
def test_what_may_never_end_is_not_opened(place: Path, name: str) -> None:
    os.mkfifo(place / "pipe")
    with pytest.raises(StorageError, match="is a pipe or a device"):
        open_file(place / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_folders_that_may_not_be_read_are_the_system_s_refusal(place: Path) -> None:
    place.parent.chmod(0o755)
    (place / "gates").mkdir(mode=0o700)
    program = (
        "import os, sys; from pathlib import Path; from anespec.system.safe_files import Folder\n"
        "os.setuid(65534)\n"
        "try:\n    Folder.open(Path(sys.argv[1])).folder('gates')\n"
        "except PermissionError as error:\n    sys.stdout.write(error.strerror)"
    )
    for folder in (place, *place.parents):
        if folder.stat().st_uid == 0 and folder != Path("/") and "pytest" in folder.as_posix():
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", program, str(place)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "Permission denied"


def test_a_folder_that_another_process_keeps_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_files, "LONGEST_WAIT", 0.0)
    entered = False
    with Folder.open(tmp_path) as first, first.held(), Folder.open(tmp_path) as second, second.held():
        entered = True
    assert entered
