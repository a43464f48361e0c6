"""A Python child of ours imports what its parent does, and nothing from the current folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from anespec.system.child_python import child_command, child_environment, signal_name
from anespec.system.coreml_errors import ended_by

PARENT = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from anespec.system.child_python import child_command, child_environment
sys.exit(subprocess.run(child_command("seen_by_parent"), env=child_environment()).returncode)
"""

CHILD = """
import time
from anespec.system.child_python import end_with_parent
end_with_parent()
time.sleep(600)
"""

TALKATIVE = """
import os, sys
from anespec.system.child_python import answer_stream
answers = answer_stream()
print("a library says", flush=True)
os.write(1, b"another one says")
answers.write(b"the answer")
answers.flush()
os._exit(0)
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A current folder whose files must not be imported."""
    folder = tmp_path / "trapped"
    folder.mkdir()
    for name in ("json", "sitecustomize", "only_here"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    return folder


@pytest.mark.fast_only("empty")
@pytest.mark.parametrize("path", ["", ":", ".", "{here}"], ids=["none", "empty", "dot", "named"])
def test_a_child_leaves_the_current_folder_alone(
    trapped: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(trapped)
    for entry in path.format(here=trapped).split(":"):
        monkeypatch.syspath_prepend(entry)
    environment = child_environment()
    assert subprocess.run(child_command("json.tool"), env=environment, input=b"{}").returncode == 0
    assert subprocess.run(child_command("only_here"), env=environment, capture_output=True).returncode == 1


def test_a_child_finds_what_its_parent_was_told_of(trapped: Path, tmp_path: Path) -> None:
    """Also where the parent came by it without any variable, as in a bundled application."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "seen_by_parent.py").write_text("import anespec.manifests, json; raise SystemExit(7)")
    found = subprocess.run([sys.executable, "-P", "-c", PARENT, str(elsewhere)], cwd=trapped, check=False)
    assert found.returncode == 7


def test_a_current_folder_that_is_gone_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert child_environment()["PYTHONPATH"].split(os.pathsep) == [entry for entry in sys.path if entry]


def test_a_child_ends_with_the_pipe_that_its_parent_holds() -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", CHILD], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(PATIENCE) == 1


def test_what_libraries_print_is_no_part_of_an_answer() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", TALKATIVE], capture_output=True, check=True)
    assert done.stdout == b"the answer"
    assert done.stderr == b"a library says\nanother one says"


def test_a_signal_without_a_name_has_its_number() -> None:
    assert signal_name(signal.SIGKILL) == "SIGKILL"
    assert signal_name(62) == "signal 62"
    assert ended_by(62) == "ended by signal 62"
