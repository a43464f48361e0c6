"""What recipes contain of a model's facts stays, so that no artifact is converted again without a reason."""

import hashlib
import json

import pytest
from family_files import FAMILIES

from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile

KNOWN: dict[str, str] = json.loads(FAMILIES.with_name("recipes.json").read_text())
"""The first digits of the SHA-256 of the text of facts, by the name of the family's file."""


def digest(name: str) -> str:
    with GGUFFile(FAMILIES / f"{name}.gguf") as file:
        return hashlib.sha256(repr(SourceModel(file).facts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", sorted(path.stem for path in FAMILIES.glob("*.gguf")))
def test_the_text_of_facts_stays(name: str) -> None:
    """A field for new families is an `added_field`. A family whose facts change gets a new line."""
    assert KNOWN.get(name) == digest(name)


def test_no_line_is_of_a_family_that_is_gone() -> None:
    assert all((FAMILIES / f"{name}.gguf").exists() for name in KNOWN)
