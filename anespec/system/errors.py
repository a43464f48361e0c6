"""The errors that users see, and the exit code of each.

Every expected failure (bad input, a missing file, a full disk, a gate that fails) is raised as an
`AnespecError` whose message is one sentence that names the object and the fix. The command line prints that
sentence and exits with the error's code (EXIT_CODES); anything else is a bug and shows a traceback.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        0: "success",
        1: "other failure",
        2: "wrong usage, or a choice that you must make, such as --force",
        3: "unusable GGUF",
        4: "unsupported model",
        5: "unusable artifact",
        6: "disk or file system, standard output included",
        7: "a request that cannot be served",
        11: "residency gate failed",
        12: "golden gate failed",
        13: "exactness gate failed",
        14: "quality gate failed",
        130: "interrupted",
        141: "the reader of standard output stopped reading",
    }
)
"""All that a command ends with; the lists that people read follow from it."""


class AnespecError(Exception):
    """A failure that a person can act on; its text is one clear sentence.

    `facts` are further data for programs, such as a failed gate's figures.
    """

    exit_code: ClassVar[int] = 1
    facts: Mapping[str, object] = MappingProxyType({})


class UsageError(AnespecError):
    """The request needs an explicit choice of the user, such as `--force`."""

    exit_code = 2


class GGUFError(AnespecError):
    """The GGUF file is truncated, malformed or lacks something every model needs."""

    exit_code = 3


class UnsupportedModelError(AnespecError):
    """A well-formed GGUF that asks for something this version does not convert."""

    exit_code = 4


class ArtifactError(AnespecError):
    """The artifact folder is missing, incomplete, damaged or of another schema."""

    exit_code = 5


class StorageError(AnespecError):
    """The file system refused: no space, no permission, not there."""

    exit_code = 6


class RequestError(AnespecError):
    """A prompt or an option that cannot be served, such as a prompt longer than the context."""

    exit_code = 7


LONGER_CONTEXT = "--context N"
"""What a sentence of PromptTooLongError advises; clients cannot give it, so the daemon names its command."""


class PromptTooLongError(RequestError):
    """A prompt that the context cannot hold, however short the answer."""


class GrammarError(RequestError):
    """A grammar that is not valid, or takes too much to prepare."""


class ResidencyGateError(AnespecError):
    """The residency gate fails."""

    exit_code = 11


class GoldenGateError(AnespecError):
    """The golden gate fails."""

    exit_code = 12


class ExactnessGateError(AnespecError):
    """The exactness gate fails."""

    exit_code = 13


class QualityGateError(AnespecError):
    """The quality gate fails."""

    exit_code = 14


class MissingPackageError(AnespecError):
    """A package is not installed that what was asked for needs; the sentence names the extra that has it."""


class UnfitError(AnespecError):
    """The doctor found what would go wrong."""


class Interrupted(AnespecError):  # noqa: N818 (no error: it was wished for)
    """Someone pressed ^C; the sentence says what became of the verb's work."""

    exit_code = 130


class ReaderGone(AnespecError):  # noqa: N818
    """The reader of standard output has closed it, as with `| head`, so no message is printed."""

    exit_code = 141
