"""Packaging is complete, files are small, and nothing is left lying about."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUFF = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
FOLDERS = (".ci", ".github", "anespec", "benchmarks", "convert", "docs", "embedded", "manifests", "runtime")
FOLDERS += ("packaging", "tests", "validate")
TEXT = {".py", ".rb", ".yml", ".md", ".toml", ".txt", ".json", ".sh", ""}
MAX_LINES = 500
LEFTOVER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~$}<:/])/(?:home|Users|root|work|tmp|mnt|opt|private)/\w")


WHOLE_CLOCK = re.compile(
    r"""setattr\((?:[\w.]*\btime, *["']|["'][\w.]*\btime\.)(?:monotonic|time|perf_counter)\b"""
)


def text_files() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(path for path in found if path.suffix in TEXT and "__pycache__" not in path.parts)


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_files_are_small() -> None:
    long = {
        f"{path.relative_to(ROOT)}: {count} lines"
        for path in text_files()
        if path.suffix == ".py" and (count := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long


def test_nothing_is_left_for_later() -> None:
    assert not lines_matching(LEFTOVER)


def test_no_path_of_one_machine() -> None:
    assert not lines_matching(MACHINE_PATH)


def test_lint_refuses_commented_code_and_debug_prints() -> None:
    assert {"ERA", "FIX", "T20"} <= set(RUFF["select"])
    assert not {"ERA", "FIX", "T20"} & set(RUFF["ignore"])
    silenced = {where for where, rules in RUFF["per-file-ignores"].items() if {"ERA", "T20"} & set(rules)}
    assert silenced <= {"benchmarks/**"}


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        (LEFTOVER, "# TO" + "DO: later", True),
        (LEFTOVER, "todos and FIXMEs", False),
        (MACHINE_PATH, 'open("/ho' + 'me/jo/model.gguf")', True),
        (MACHINE_PATH, "see https://example.org/home/page and ~/work/x and $HOME/tmp/y", False),
    ],
)
def test_the_patterns_can_fail(pattern: re.Pattern[str], line: str, found: bool) -> None:
    assert bool(pattern.search(line)) is found


def test_no_test_stops_the_clock_of_the_whole_process() -> None:
    """The event loops of daemons that several tests share would wait for as long as the machine has run.

    A module's own name `time` can be replaced instead.
    """
    assert WHOLE_CLOCK.search('monkeypatch.setattr(course.time, "monotonic", lambda: 0.0)')
    assert WHOLE_CLOCK.search('monkeypatch.setattr("anespec.cli.console.time.monotonic", clock)')
    found = [line for line in lines_matching(WHOLE_CLOCK) if not line.startswith("tests/house/")]
    assert not found
