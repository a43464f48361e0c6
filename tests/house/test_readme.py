"""What the README lists is what there is."""

from pathlib import Path

from anespec.convert.architectures import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_every_architecture_that_converts_is_named() -> None:
    (listed,) = (part for part in README.split("\n\n") if part.startswith("What converts"))
    named = {word for word in listed.split("`")[1::2] if word != "gguf"}
    assert named == set(FAMILIES)


def test_every_document_is_in_the_tour() -> None:
    tour = README[README.index("## A tour") :]
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in tour] == []
