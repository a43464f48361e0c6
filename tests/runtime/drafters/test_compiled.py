"""What is compiled is kept by the state of its sources, and runs where nothing can be kept."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anespec.runtime.backends.coreml.compiled import COMPILED_FOLDER
from anespec.runtime.drafters import kept_code

PROGRAM = """
from anespec.runtime.drafters.candidates import pair_row
print(pair_row(3, 4, 1000), len(pair_row.stats.cache_hits))
"""


def start(**environment: str) -> "subprocess.Popen[str]":
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "HOME")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=kept | environment, stdout=subprocess.PIPE, text=True
    )


def said(process: "subprocess.Popen[str]") -> list[int]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return [int(word) for word in out.split()]


@pytest.mark.slow
def test_what_one_process_compiled_others_load_also_where_two_do_so_at_once_or_it_was_damaged(
    tmp_path: Path,
) -> None:
    cache = str(tmp_path / "cache")
    both = [start(XDG_CACHE_HOME=cache) for _ in range(2)]
    values = {said(process)[0] for process in both}
    (folder,) = (tmp_path / "cache" / "anespec" / kept_code.CODE_FOLDER).iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    value, hits = said(start(XDG_CACHE_HOME=cache))
    assert (values, hits) == ({value}, 1)
    # What is damaged is compiled anew, and kept.
    (index,) = folder.rglob("*.pair_row-*.nbi")
    (code,) = folder.rglob("*.chances_of-*.nbc")
    index.write_bytes(b"")
    code.write_bytes(code.read_bytes()[:40])
    assert said(start(XDG_CACHE_HOME=cache)) == [value, 0]
    assert said(start(XDG_CACHE_HOME=cache)) == [value, 1]


@pytest.mark.slow
def test_it_is_compiled_anew_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    value, hits = said(start(XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert 0 <= value < 1000
    assert hits == 0


@pytest.fixture
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all compiled code, of which nobody in this process knows yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code"))
    kept_code.code_folder.cache_clear()
    yield tmp_path / "code"
    kept_code.code_folder.cache_clear()


def test_other_sources_have_another_state_and_old_states_go_but_nothing_else_does(
    anew: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [anew / f"work{number}" for number in range(6)]
    for path in others:
        path.mkdir(parents=True)
    for number in range(kept_code.KEPT_FOLDERS + 2):
        monkeypatch.setattr(kept_code, "_state_of_sources", lambda state=f"{number:016x}": state)
        kept_code.code_folder.cache_clear()
        folder = kept_code.code_folder()
        assert folder is not None and folder.is_relative_to(anew)
        assert folder.stat().st_mode & 0o077 == 0
        os.utime(folder, (number, number))
        (folder.parent / f"mine{number}").mkdir()
    kept = [path.name for path in folder.parent.iterdir() if not path.name.startswith("mine")]
    assert sorted(kept) == [f"{number:016x}" for number in (2, 3, 4, 5)]
    assert len(list(folder.parent.glob("mine*"))) == kept_code.KEPT_FOLDERS + 2
    assert all(path.exists() for path in others)


def test_nothing_else_in_the_cache_is_taken_for_code() -> None:
    """Both name their folders alike, by sixteen digits."""
    assert kept_code.CODE_FOLDER != COMPILED_FOLDER


def code_folder_anew() -> Path | None:
    """The folder for compiled code, looked for as a new process does."""
    kept_code.code_folder.cache_clear()
    return kept_code.code_folder()


@pytest.mark.parametrize(("mode", "is_used"), [(0o777, False), (0o770, False), (0o1777, True), (0o755, True)])
def test_code_is_kept_only_below_folders_that_nobody_else_may_write(
    anew: Path, mode: int, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No group is taken for this user's own.
    monkeypatch.setattr("anespec.system.safe_files._is_private_group", lambda group: False)
    (anew / "below").mkdir(parents=True)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(anew / "below"))
    anew.chmod(mode)
    assert (code_folder_anew() is not None) == is_used


def test_code_is_kept_where_only_the_users_own_group_may_write(
    anew: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distributions that give each user a group create folders so."""
    anew.mkdir()
    anew.chmod(0o770)
    monkeypatch.setattr("anespec.system.safe_files._is_private_group", lambda group: True)
    assert code_folder_anew() is not None


def test_code_is_not_kept_below_a_folder_of_another_user(anew: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to somebody else")
    (anew / "below").mkdir(parents=True)
    os.chown(anew, 12345, -1)
    assert code_folder_anew() is None


def test_code_is_not_kept_behind_a_link_that_somebody_else_could_change(
    anew: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anespec.system.safe_files._is_private_group", lambda group: False)
    (tmp_path / "shared").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared" / "link").symlink_to("../mine")
    anew.symlink_to(tmp_path / "shared" / "link")
    assert code_folder_anew() is not None
    (tmp_path / "shared").chmod(0o770)
    assert code_folder_anew() is None


def test_a_link_in_the_place_of_the_folder_itself_is_refused(anew: Path, tmp_path: Path) -> None:
    folder = code_folder_anew()
    assert folder is not None
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert code_folder_anew() is None


def test_new_folders_for_code_are_private_from_the_beginning(
    anew: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making a folder and forbidding it to others, somebody could put code there."""
    modes = []
    mkdir = os.mkdir

    def noted(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        modes.append(mode)
        mkdir(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", noted)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(anew / "one" / "two"))
    assert code_folder_anew() is not None
    assert len(modes) >= 5 and set(modes) == {0o700}


def test_code_of_somebody_else_is_removed_before_it_is_loaded(anew: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to somebody else")
    folder = code_folder_anew()
    assert folder is not None
    (folder / "drafters_1").mkdir()
    (folder / "foreign_1").mkdir()
    mine, theirs = (folder / "drafters_1" / name for name in ("mine.nbi", "theirs.nbi"))
    for path in (mine, theirs, folder / "foreign_1" / "inside.nbi"):
        path.write_bytes(b"pickled")
    (folder / "drafters_1" / "link.nbc").symlink_to(mine)
    os.chown(theirs, 12345, -1)
    os.chown(folder / "foreign_1", 12345, -1)
    assert code_folder_anew() == folder
    assert [path.name for path in sorted(folder.rglob("*"))] == ["drafters_1", "mine.nbi"]


def test_the_current_folder_is_no_place_for_code(
    anew: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "code")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = kept_code.code_folder()
    assert folder is not None and folder.is_relative_to(tmp_path / "cache")
    assert not anew.exists()


def test_what_was_noted_as_whole_is_never_loaded_otherwise(anew: Path) -> None:
    folder = kept_code.code_folder()
    assert folder is not None
    (folder / "drafters_1").mkdir()
    one, two, new = (folder / "drafters_1" / f"{name}.1.nbc" for name in ("one", "two", "new"))
    one.write_bytes(b"code of one")
    two.write_bytes(b"code of two")
    kept_code.note_compiled("auto")
    new.write_bytes(b"is being written")
    kept_code.code_folder.cache_clear()
    assert kept_code.is_compiled("auto")
    one.write_bytes(b"code of onE")
    kept_code.code_folder.cache_clear()
    assert not kept_code.is_compiled("auto")
    assert [path.exists() for path in (one, two, new)] == [False, True, True]
    kept_code.note_compiled("auto")
    two.unlink()
    kept_code.code_folder.cache_clear()
    assert not kept_code.is_compiled("auto")


PARTS_OF_AUTO = ("mix", "datastore", "recycle", "jacobi")


def test_where_auto_is_compiled_nothing_is_left_of_its_parts(anew: Path) -> None:
    kept_code.note_compiled("auto")
    assert not any(kept_code.must_compile(name) for name in (*PARTS_OF_AUTO, "lookup"))
    assert kept_code.must_compile("mod")


@pytest.mark.slow
def test_auto_has_all_compiled_functions_of_its_parts() -> None:
    program = f"""
import numba
compile, made = numba.njit, []
numba.njit = lambda *given, **options: made.append(given) or compile(*given, **options)
from anespec.runtime.drafters.kept_code import import_compiled
import_compiled("auto")
before = len(made)
for name in {PARTS_OF_AUTO}:
    import_compiled(name)
print(before, len(made))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == after != "0"


def test_the_state_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_code, "__file__", str(tmp_path / "compiled.py"))
    (tmp_path / "one.py").write_text("1")
    before = kept_code._state_of_sources()
    assert kept_code._state_of_sources() == before
    (tmp_path / "one.py").write_text("2")
    assert kept_code._state_of_sources() != before


def test_another_installation_has_another_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source.py").write_text("1")
        monkeypatch.setattr(kept_code, "__file__", str(tmp_path / name / "compiled.py"))
        states.add(kept_code._state_of_sources())
    os.utime(tmp_path / "two" / "source.py", (1, 1))
    assert len(states | {kept_code._state_of_sources()}) == 3
