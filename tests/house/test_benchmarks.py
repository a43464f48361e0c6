"""Every benchmark has a smoke run, and the run of all leaves none out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
HELPERS = {"llama_server.py", "losing_daemon.py", "smoke.py"}
"""Programs that measure nothing: a build, a daemon with a fault, and the run of all."""

PROGRAMS = [
    path for path in sorted(FOLDER.glob("*.py")) if re.search(r"^if __name__", path.read_text(), re.M)
]
BENCHMARKS = [path for path in PROGRAMS if path.name not in HELPERS]


def test_the_run_of_all_leaves_none_out() -> None:
    command = [sys.executable, FOLDER / "smoke.py", "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed.split() == [path.name for path in BENCHMARKS]


@pytest.mark.parametrize("program", BENCHMARKS, ids=lambda path: path.name)
def test_every_benchmark_has_a_smoke_run(program: Path) -> None:
    assert re.search(r"parse_(known_)?args\(command_line\(parser", program.read_text())


def test_the_readme_names_every_benchmark() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert not [path.name for path in BENCHMARKS if f"| `{path.name}" not in readme]
