"""The families that convert, as docs/architectures.md tells of them."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from architecture_table import written

from anespec.convert.families import FAMILIES
from anespec.convert.families.family import Family
from anespec.convert.source.matrix import kind_and_number
from anespec.convert.source.model import PER_LAYER_PROJECTION, SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.weight_choice import KINDS, PER_LAYER

DOCS = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"
MODELS = sorted((Path(__file__).resolve().parents[1] / "data" / "families").glob("*.gguf"))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = DOCS.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_family_stands_in_the_documented_table() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows("Families")}
    assert documented == {name: family.title for name, family in FAMILIES.items()}


def test_every_field_of_a_family_is_documented() -> None:
    documented = {name for row in rows("The fields of a family") for name in re.findall(r"`(\w+)`", row[0])}
    assert documented == {field.name for field in fields(Family)}


def test_the_page_says_what_happens_to_each_architecture_of_llama_cpp() -> None:
    assert DOCS.read_text() == written(), "write it anew: python tests/support/architecture_table.py"


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_projection_is_of_a_kind_that_a_weight_format_can_be_given(path: Path) -> None:
    with GGUFFile(path) as file:
        model = SourceModel(file)
        roles = {role for layer in model.facts.layers for role in model.matrices(layer)}
    assert {kind_and_number(role)[0] for role in roles} <= set(KINDS)
    assert f"{PER_LAYER}.weight" == PER_LAYER_PROJECTION
