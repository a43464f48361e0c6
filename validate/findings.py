"""The findings of a check of a machine, each with a level and, if there is one, a fix."""

from collections.abc import Iterable
from enum import StrEnum

from anespec.manifests.schema import Record


class Level(StrEnum):
    """How a finding stands. `not here`: it cannot be looked at on this machine, for the reason given."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    NOT_HERE = "not here"

    @classmethod
    def worst(cls, levels: Iterable["Level"]) -> "Level":
        """The one that asks most for a mend; `not here` where there are none."""
        found = set(levels)
        return next((level for level in _WORST_FIRST if level in found), cls.NOT_HERE)


_WORST_FIRST = (Level.FAIL, Level.WARN, Level.OK, Level.NOT_HERE)


class Finding(Record):
    """One thing that was looked at: what was found, in a sentence, and what to do about it.

    `subject` is a word or two by which it is found again, in the terminal and by programs.
    """

    subject: str
    level: Level
    text: str
    mend: str | None = None
