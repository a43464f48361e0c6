"""Define the grades of evidence for facts about Core ML, which this project has never run on a Mac."""

from enum import StrEnum


class Grade(StrEnum):
    """How well a fact is known: Apple says so; one or two projects measured it; anecdote or inference; tried
    here.

    "Here" is where this project runs: on Linux, or on the machine whose owner ran `anespec tune`.
    """

    A = "A"
    B = "B"
    C = "C"
    OURS = "ours"
