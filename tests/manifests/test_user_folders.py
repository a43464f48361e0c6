"""Folders of the user: where they are, and that nobody else gets in."""

import os
import stat
from pathlib import Path

import pytest

from anespec.system.errors import StorageError
from anespec.system.user_folders import cache_folder, private_folder, state_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    return tmp_path


def test_they_follow_the_base_directories(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == home / ".cache" / "anespec"
    assert state_folder() == home / ".local" / "state" / "anespec"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "elsewhere"))
    assert cache_folder() == home / "elsewhere" / "anespec"


def test_a_relative_base_directory_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_folder() == home / ".cache" / "anespec"


def test_a_mac_has_them_in_its_library(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == home / "Library" / "Caches" / "anespec"
    assert state_folder() == home / "Library" / "Application Support" / "anespec"


def test_without_a_home_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StorageError, match="set XDG_STATE_HOME"):
        state_folder()


def test_what_is_made_is_for_its_user_alone(home: Path) -> None:
    with private_folder(cache_folder() / "models" / "deep"):
        pass
    for folder in ("", "models", "models/deep"):
        assert stat.S_IMODE((cache_folder() / folder).stat().st_mode) == 0o700


def test_others_lose_the_right_to_what_was_open_to_them(home: Path) -> None:
    folder = cache_folder()
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    base = stat.S_IMODE(folder.parent.stat().st_mode)
    with private_folder(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == base


@pytest.mark.parametrize("name", ["", "models"])
def test_a_link_in_its_place_is_refused(home: Path, name: str) -> None:
    trap = cache_folder() / name if name else cache_folder()
    trap.parent.mkdir(parents=True, exist_ok=True)
    (home / "other").mkdir()
    trap.symlink_to(home / "other")
    with pytest.raises(StorageError, match="is a link"), private_folder(cache_folder() / "models"):
        pass
    assert not list((home / "other").iterdir())


def test_another_users_folder_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_folder().mkdir(parents=True)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(StorageError, match="belongs to another user"), private_folder(cache_folder()):
        pass


def test_a_file_in_its_place_is_a_sentence(home: Path) -> None:
    cache_folder().parent.mkdir()
    cache_folder().write_text("")
    with pytest.raises(StorageError, match="cannot be used"), private_folder(cache_folder()):
        pass


def test_around_a_folder_that_a_person_chose_nothing_changes(home: Path) -> None:
    around = home / "anespec"
    around.mkdir()
    around.chmod(0o755)
    with private_folder(around / "mine" / "below", base=around / "mine"):
        pass
    with private_folder(around / "other"):
        pass
    modes = [stat.S_IMODE((around / name).stat().st_mode) for name in ("", "mine", "mine/below", "other")]
    assert modes == [0o755, 0o700, 0o700, 0o700]
