"""The findings of a check of a machine, each with a level and, if there is one, a fix."""

from anespec.manifests.schema import Record
from anespec.manifests.verdicts import Ranked


class Level(Ranked):
    """How a finding stands. `not here`: it cannot be looked at on this machine, for the reason given."""

    FAIL = "fail"
    WARN = "warn"
    OK = "ok"
    NOT_HERE = "not here"


class Finding(Record):
    """One thing that was looked at: what was found, in a sentence, and what to do about it.

    `subject` is a word or two by which it is found again, in the terminal and by programs.
    """

    subject: str
    level: Level
    text: str
    mend: str | None = None
