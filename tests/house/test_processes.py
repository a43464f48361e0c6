"""Every process of ours starts where nobody else can put files (anespec/system/child_python.py)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("anespec", "convert", "embedded", "manifests", "runtime", "validate")
STARTS = {"subprocess.Popen", "subprocess.run", "subprocess.check_call", "subprocess.check_output"}


def starts(source: str) -> Iterator[ast.Call]:
    """The calls in a source that start a process."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in STARTS:
            yield node


def folders(call: ast.Call) -> list[str]:
    """What a call says of the folder that its process starts in."""
    return [ast.unparse(each.value) for each in call.keywords if each.arg == "cwd"]


@pytest.mark.slow
def test_every_process_starts_in_the_neutral_folder() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{call.lineno}": folders(call)
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        for call in starts(path.read_text())
    }
    assert len(found) > 10
    assert {place: folder for place, folder in found.items() if folder != ["NEUTRAL_FOLDER"]} == {}


def test_a_process_without_a_folder_is_found() -> None:
    (call,) = starts("import subprocess\nsubprocess.run(['swift', '--version'], check=False)\n")
    assert folders(call) == []
