"""What README and the documents list is what there is."""

import re
import subprocess
from pathlib import Path

from anespec.cli.main import VERBS
from anespec.convert.families import FAMILIES
from anespec.manifests.verdicts import OPTIONAL, REQUIRED_FOR_SPECULATION, Invariance

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"


def first_cells(table: str) -> list[str]:
    """What stands in the first column of every row that begins with code."""
    return re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)


def test_every_architecture_that_converts_is_named() -> None:
    (section,) = re.findall(r"^## Families\n(.*?)^## ", (DOCS / "architectures.md").read_text(), re.S | re.M)
    assert {cell.strip("`") for cell in first_cells(section)} == set(FAMILIES)


def test_every_verb_is_named() -> None:
    table = (DOCS / "commands.md").read_text().split("\n## ")[0]
    named = {verb for cell in first_cells(table) for verb in re.findall(r"`(\w+)`", cell)}
    assert named == set(VERBS)


def test_every_folder_is_in_the_tour() -> None:
    linked = {path.name for path in (ROOT / "anespec").iterdir() if path.is_symlink()}
    tour = README[README.index("## A tour") :]
    named = set(re.findall(r"^(\w+)/ ", tour, re.MULTILINE))
    assert named == {"anespec", *linked, "tests", "benchmarks", "packaging", "docs"}


def test_what_speculation_needs_is_told_as_it_is() -> None:
    page = (DOCS / "validate.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| exactness"))
    needed, (*others, last) = ", ".join(REQUIRED_FOR_SPECULATION), OPTIONAL
    assert f": {needed} (needed), {', '.join(others)} and {last} (optional)" in row
    assert f"{NUMBERS[len(Invariance)]} invariances" in row
    first = NUMBERS[len(REQUIRED_FOR_SPECULATION)]
    assert f"without the first {first} invariances it neither speculates" in " ".join(page.split())


def test_ci_runs_the_tests_by_the_command_that_is_told() -> None:
    told = re.findall(r"^make (test\S*)", README, re.MULTILINE)
    stages = re.findall(r"^stage .*make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert told == ["test"]
    assert {"test", "journeys", "lint", "typecheck", "wheel"} <= set(stages)


def test_every_test_is_run_by_some_command() -> None:
    names = ("test", "journeys", "test-all")
    test, journeys, everything = (
        subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in names
    )
    assert "-m 'not slow and not journey'" in test
    assert "-m journey" in journeys
    assert "-m pytest" in everything and "slow" not in everything and "journey" not in everything
    weekly = (ROOT / ".github" / "workflows" / "weekly.yml").read_text()
    assert "make test-all" in weekly and "make benchmarks-smoke" in weekly
