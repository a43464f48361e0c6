"""Every benchmark has a smoke run, and the run of all leaves none out."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
HELPERS = {"flood.py", "llama_server.py", "losing_daemon.py", "smoke.py"}
"""Programs that measure nothing: clients, a build, a daemon with a fault, and the run of all."""

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
    assert re.search(r'parse_(known_)?args\(\s*command_line\(parser|"--smoke"', program.read_text())


def test_the_readme_names_every_benchmark() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert not [path.name for path in BENCHMARKS if f"| `{path.name}" not in readme]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sse4_2 avx avx2 fma f16c bmi2", {"SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2"}),
        ("avx512f avx512bw", set()),
        ("avx512f avx512cd avx512bw avx512dq avx512vl avx512_vnni", {"AVX512", "AVX512_VNNI"}),
    ],
)
def test_the_peer_is_built_for_the_instructions_that_are_listed(words: str, expected: set[str]) -> None:
    code = "import json, sys; from llama_server import instruction_options as made; "
    code += "print(json.dumps(made(sys.argv[1].split())))"
    command = [sys.executable, "-c", code, words]
    said = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True).stdout
    options = dict(option.removeprefix("-DGGML_").split("=") for option in json.loads(said))
    assert {name for name, value in options.items() if value == "ON"} == expected
    assert "AMX_TILE" in options, "what is not listed must be off, not left to the compiler"
