"""What the README lists is what there is."""

from pathlib import Path

from anespec.convert.architectures import FAMILIES
from anespec.manifests.verdicts import OPTIONAL, REQUIRED_FOR_SPECULATION, Invariance

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_every_architecture_that_converts_is_named() -> None:
    (listed,) = (part for part in README.split("\n\n") if part.startswith("What converts"))
    named = {word for word in listed.split("`")[1::2] if word != "gguf"}
    assert named == set(FAMILIES)


def test_every_document_is_in_the_tour() -> None:
    tour = README[README.index("## A tour") :]
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in tour] == []


def test_what_speculation_needs_is_told_as_it_is() -> None:
    (row,) = (line for line in README.splitlines() if line.startswith("| exactness"))
    needed, (*others, last) = ", ".join(REQUIRED_FOR_SPECULATION), OPTIONAL
    assert f": {needed} (needed), {', '.join(others)} and {last} (optional)" in row
    assert f"{NUMBERS[len(Invariance)]} invariances" in row
    assert f"without the first {NUMBERS[len(REQUIRED_FOR_SPECULATION)]} it neither speculates" in README
