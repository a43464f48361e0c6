"""Add a field to facts about models without changing the text of facts in which it has its default."""

from dataclasses import field
from typing import TypeVar

T = TypeVar("T")


def added_field(default: T) -> T:
    """Return a field of a frozen dataclass that the text of its objects leaves out.

    Recipes contain the text of a model's facts (see convert.pipeline), and an artifact with another recipe is
    converted again. So a field that only new families need must not change the text of all others. The file's
    hash and the version of anespec, which are in the recipe too, determine the field's value.
    """
    hidden: T = field(default=default, repr=False)
    return hidden
