"""No verb imports from the folder that it is run in, whatever lies there, in however many processes."""

import subprocess
from pathlib import Path

import pytest
from installation import Installation, install

TRAPS = ("gguf", "numpy", "anespec", "coremltools", "torch", "openvino", "json", "click", "rich", "jinja2")
TRAPS += ("pydantic", "multiprocessing", "pickle", "tokenizers", "sitecustomize", "usercustomize", "google")
TRAP = "import os, pathlib\npathlib.Path({marker!r}).touch()\nos._exit(99)\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder full of files that end whoever imports them, and say so."""
    folder = tmp_path / "trapped"
    for name in TRAPS:
        package = folder / name
        package.mkdir(parents=True)
        content = TRAP.format(marker=str(tmp_path / f"{name}.imported"))
        (package / "__init__.py").write_text(content)
        (folder / f"{name}.py").write_text(content)
    return folder


def imported(trapped: Path) -> list[str]:
    """The traps that went off."""
    return sorted(path.stem for path in trapped.parent.glob("*.imported"))


def test_the_traps_go_off(installed: Installation, trapped: Path) -> None:
    """Under `python -m` and `-c`, Python puts the current folder first, before anything of ours runs."""
    for option in (["-m", "anespec"], ["-c", "import gguf"]):
        assert subprocess.run([installed.python, *option], cwd=trapped, check=False).returncode == 99
    assert imported(trapped) == ["anespec", "gguf"]


def test_no_verb_imports_from_the_current_folder(
    installed: Installation, trapped: Path, families: Path
) -> None:
    gguf = families / "llama.gguf"
    commands = (
        ("inspect", gguf, "--plan"),
        ("convert", gguf, "-o", "one.anespec", "--target", "cpu", "--jobs", 1),
        ("convert", gguf, "-o", "two.anespec", "--target", "cpu", "--topology", "2,2", "--jobs", 3),
        ("inspect", "two.anespec"),
        ("validate", "two.anespec", "--gguf", gguf, "--quick"),
        ("generate", "two.anespec", "-p", "t1", "-n", 4),
    )
    for command in commands:
        outcome = installed.run(*command, cwd=trapped)
        assert imported(trapped) == [], command
        assert outcome.code == 0, (command, outcome.err)


def test_demo_proves_its_point(installed: Installation, trapped: Path) -> None:
    outcome = installed.run("demo", "--json", cwd=trapped)
    assert imported(trapped) == []
    facts = outcome.json
    assert facts["identical"] is True
    assert (facts["golden"], facts["exactness"]) == ("pass", "pass")
    assert all(run["passes_with"] < run["passes_without"] for run in facts["runs"])
