"""The findings of a check of a machine, each with a level and, where there is one, a fix."""

from anespec.manifests.schema import Record
from anespec.manifests.verdicts import Ranked


class Level(Ranked):
    """The level of a finding. `not here`: it cannot be checked on this machine, for the reason given."""

    FAIL = "fail"
    WARN = "warn"
    OK = "ok"
    NOT_HERE = "not here"


class Finding(Record):
    """The result of one check, as a sentence, and what to do about it.

    `subject` is a word or two that identifies the finding in the terminal and for programs. `mend` is the
    fix.
    """

    subject: str
    level: Level
    text: str
    mend: str | None = None
