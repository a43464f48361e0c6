"""What a process that builds shards imports: nothing that a graph built by hand does not need."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_model import TinyModel, write_gguf

from anespec.convert.worker_imports import HIDDEN_LIBRARIES

MAIN = "from anespec.cli.main import main; main()"


@pytest.mark.slow
def test_building_imports_no_library_that_could_be_converted_from(tmp_path: Path) -> None:
    """And afterwards they can be imported as ever, by whoever needs them."""
    script = f"""
import importlib.util, sys
import anespec.convert.worker_imports
import coremltools
assert not [name for name in {HIDDEN_LIBRARIES} if name in sys.modules]
assert importlib.util.find_spec("torch")
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


@pytest.mark.slow
def test_the_command_line_converts_without_torch(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "m.gguf", TinyModel(layers=1))
    command = [sys.executable, "-X", "importtime", "-c", MAIN, "convert", gguf, "-o", tmp_path / "a"]
    done = subprocess.run(
        [*command, "--jobs", "1", "--target", "cpu"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "coremltools" in imported
    # What is asked for and not found has a line as well, so their modules tell whether they were loaded.
    assert not [name for name in imported if name.startswith(tuple(f"{each}." for each in HIDDEN_LIBRARIES))]
