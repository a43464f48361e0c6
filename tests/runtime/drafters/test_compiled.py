"""What is compiled is kept by the state of its sources, and runs where nothing can be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_what_one_process_compiled_others_load_also_where_two_do_so_at_once(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    both = [start(XDG_CACHE_HOME=cache) for _ in range(2)]
    values = {said(process)[0] for process in both}
    (folder,) = (tmp_path / "cache" / "anespec" / "compiled").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    value, hits = said(start(XDG_CACHE_HOME=cache))
    assert (values, hits) == ({value}, 1)


def test_it_is_compiled_anew_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    value, hits = said(start(XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert 0 <= value < 1000
    assert hits == 0


def test_other_sources_have_another_state_and_old_states_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for number in range(kept_code.KEPT_FOLDERS + 2):
        monkeypatch.setattr(kept_code, "_state_of_sources", lambda state=f"state{number}": state)
        kept_code.code_folder.cache_clear()
        folder = kept_code.code_folder()
        assert folder is not None
        os.utime(folder, (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state2", "state3", "state4", "state5"]
    kept_code.code_folder.cache_clear()


def test_the_state_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_code, "__file__", str(tmp_path / "compiled.py"))
    (tmp_path / "one.py").write_text("1")
    before = kept_code._state_of_sources()
    assert kept_code._state_of_sources() == before
    (tmp_path / "one.py").write_text("2")
    assert kept_code._state_of_sources() != before
