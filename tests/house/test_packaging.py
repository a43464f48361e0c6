"""What is installed elsewhere: the image's recipe, the Homebrew formula, and what sdist and wheel hold."""

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINKS = {path.name for path in (ROOT / "anespec").iterdir() if path.is_symlink()}
FOLDERS = {"anespec"} | LINKS
BESIDE = {"pyproject.toml", "README.md", "LICENSE"}
MOST_BYTES = 8_000_000


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments; continued lines are one."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage."""
    found: list[list[tuple[str, str]]] = []
    for name, argument in instructions():
        if name == "FROM":
            found.append([])
        found[-1].append((name, argument))
    return found


def test_the_image_has_two_stages_of_one_python_that_the_package_takes() -> None:
    build, final = stages()
    assert build[0][1].removesuffix(" AS build") == final[0][1]
    (minor,) = re.findall(r"^python:3\.(\d+)-slim-\w+$", final[0][1])
    oldest, beyond = re.findall(r"3\.(\d+)", PYPROJECT["project"]["requires-python"])
    assert int(oldest) <= int(minor) < int(beyond)


def test_the_image_holds_what_was_built_and_runs_as_nobody_special() -> None:
    _, final = stages()
    assert [argument for name, argument in final if name == "COPY"] == ["--from=build /anespec /anespec"]
    users = [argument for name, argument in final if name == "USER"]
    assert users
    assert int(users[-1]) >= 10_000
    after = [name for name, _ in final[final.index(("USER", users[-1])) :]]
    assert "RUN" not in after


def test_the_image_is_built_of_the_package_alone_and_takes_no_torch() -> None:
    build, _ = stages()
    copied = {word for name, argument in build if name == "COPY" for word in argument.split()[:-1]}
    assert copied == FOLDERS | BESIDE | {"constraints.txt"}
    run = " ".join(argument for name, argument in build if name == "RUN")
    assert "--constraint constraints.txt . " in run
    assert "--no-cache-dir" in run
    assert "[" not in run


def test_the_context_is_what_the_image_copies() -> None:
    lines = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == FOLDERS | BESIDE | {"constraints.txt"}
    left_out = [line for line in lines[1:] if not line.startswith("!")]
    for path in ("swift/Tests", "swift/.build", "runtime/__pycache__"):
        assert any(fnmatch.fnmatch(path, pattern) for pattern in left_out)


def test_the_image_starts_the_command_and_asks_it_for_its_health() -> None:
    _, final = stages()
    told = dict(final)
    assert json.loads(told["ENTRYPOINT"]) == ["anespec"]
    assert "ANESPEC_SERVE_HOST=0.0.0.0" in told["ENV"]
    (port,) = re.findall(r"ANESPEC_SERVE_PORT=(\d+)", told["ENV"])
    assert told["EXPOSE"] == port
    assert "/health" in told["HEALTHCHECK"]


def test_the_formula_builds_from_the_repository_that_it_lies_in() -> None:
    formula = ROOT / "HomebrewFormula" / "anespec.rb"
    assert formula.resolve() == ROOT / "packaging" / "homebrew" / "anespec.rb"
    text = formula.read_text()
    assert text.count("parent") == len(formula.resolve().relative_to(ROOT).parts)
    (minor,) = set(re.findall(r"python@?3\.(\d+)", text))
    oldest, beyond = re.findall(r"3\.(\d+)", PYPROJECT["project"]["requires-python"])
    assert int(oldest) <= int(minor) < int(beyond)
    assert f'license "{PYPROJECT["project"]["license"]}"' in text
    (desc,) = re.findall(r'^  desc "(.*)"$', text, re.MULTILINE)
    assert len(desc) <= 80
    assert not desc.endswith(".")
    assert text.count("\n  def ") + text.count(" do\n") + 1 == len(re.findall(r"^ *end$", text, re.MULTILINE))
    assert all(len(line) <= 118 for line in text.splitlines())


def test_brew_has_nothing_to_say_of_the_formula() -> None:
    brew = shutil.which("brew")
    if brew is None:
        pytest.skip("needs brew (https://brew.sh)")
    done = subprocess.run(
        [brew, "style", str(ROOT / "packaging" / "homebrew" / "anespec.rb")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_demo_of_a_clone_ends_with_how_to_call_anespec() -> None:
    done = subprocess.run(["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    _, _, ending = done.stdout.partition("/bin/anespec demo\n")
    for command in (". .venv/bin/activate", "uv tool install .", "pipx install ."):
        assert command in ending


BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def built(kind: str, source: Path, output: Path) -> Path:
    """What setuptools makes of a folder of sources."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{kind}", str(output)],
        cwd=source, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return output / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of a clean copy of the repository, beside which other files lie."""
    clean = tmp_path_factory.mktemp("clean")
    for name in (*FOLDERS, "tests/support", "docs"):
        left_out = shutil.ignore_patterns("__pycache__", ".build")
        shutil.copytree(ROOT / name, clean / name, symlinks=True, ignore=left_out)
    for name in (*BESIDE, "constraints.txt", "CHANGELOG.md", "Makefile"):
        shutil.copy(ROOT / name, clean / name)
    return built("sdist", clean, tmp_path_factory.mktemp("sdist"))


@pytest.mark.slow
def test_the_sdist_holds_the_package_and_what_builds_it(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {Path(*Path(each.name).parts[1:]) for each in archive.getmembers() if each.isfile()}
    tops = {name.parts[0] for name in names}
    assert tops == BESIDE | {"anespec", "PKG-INFO", "setup.cfg", "anespec.egg-info"}
    assert not [name for name in names if "Tests" in name.parts or name.suffix == ".pyc"]
    assert sdist.stat().st_size < MOST_BYTES


@pytest.mark.slow
def test_the_wheel_of_the_sdist_holds_every_file_of_the_package(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    wheel = built("wheel", source, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        "/".join(
            (
                "anespec" if folder == "anespec" else f"anespec/{folder}",
                *path.relative_to(ROOT / folder).parts,
            )
        )
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", ".build", "Tests"} & set(path.parts)
    }
    assert expected - held == set()
    assert held - expected == set()
    assert wheel.stat().st_size < MOST_BYTES
