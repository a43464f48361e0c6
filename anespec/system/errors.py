"""Define the errors that users see, and their exit codes.

Every expected failure (bad input, a missing file, a full disk, a failed gate) is raised as an `AnespecError`
whose message is one sentence that names the object and the fix. The command line prints that sentence and
exits with the error's code (EXIT_CODES); anything else is a bug and shows a traceback.
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
        8: "a file, a model or an artifact that does not exist",
        11: "residency gate failed",
        12: "golden gate failed",
        13: "exactness gate failed",
        14: "quality gate failed",
        130: "interrupted",
        141: "the reader of standard output stopped reading",
    }
)
"""All exit codes of the command line; help and docs list them from here."""


class AnespecError(Exception):
    """A failure that the user can fix; its message is one sentence.

    `facts` are further data for programs, such as a failed gate's figures.
    """

    exit_code: ClassVar[int] = 1
    facts: Mapping[str, object] = MappingProxyType({})


class UsageError(AnespecError):
    """The command line is wrong, or needs an explicit choice such as `--force`."""

    exit_code = 2


class GGUFError(AnespecError):
    """The GGUF file is truncated or malformed, or lacks something that every model needs."""

    exit_code = 3


class UnsupportedModelError(AnespecError):
    """The GGUF is valid, but this version does not convert such a model."""

    exit_code = 4


class ArtifactError(AnespecError):
    """The artifact folder is missing, incomplete, damaged or of another schema."""

    exit_code = 5


class StorageError(AnespecError):
    """The file system refused: no space, no permission, or no such file."""

    exit_code = 6


class NotFoundError(StorageError):
    """A file, a model or an artifact that the user named does not exist."""

    exit_code = 8


class RequestError(AnespecError):
    """A prompt or an option is invalid here, e.g. a prompt longer than the context."""

    exit_code = 7


LONGER_CONTEXT = "--context N"
"""The option that a PromptTooLongError recommends. Clients cannot set it, so the daemon names its command
instead."""


class PromptTooLongError(RequestError):
    """The prompt leaves no room in the context for an answer."""


class GrammarError(RequestError):
    """A grammar is invalid, or takes too much time or memory to prepare."""


GRAMMAR_FAILED = "the output cannot follow its grammar any further"
"""The beginning of the error of a sequence whose grammar fails while it is followed. An event of the engine
has only the error's text; the daemon recognizes the request's own fault by it."""


class ResidencyGateError(AnespecError):
    """The residency gate failed."""

    exit_code = 11


class GoldenGateError(AnespecError):
    """The golden gate failed."""

    exit_code = 12


class ExactnessGateError(AnespecError):
    """The exactness gate failed."""

    exit_code = 13


class QualityGateError(AnespecError):
    """The quality gate failed."""

    exit_code = 14


class MissingPackageError(AnespecError):
    """A required package is not installed; the message has the command that installs it."""


class UnfitError(AnespecError):
    """The doctor found a problem."""


class Interrupted(AnespecError):  # noqa: N818 (not an error: the user wanted it)
    """^C was pressed; the message says what happened to the unfinished work."""

    exit_code = 130


class ReaderGone(AnespecError):  # noqa: N818
    """The reader of standard output closed it, as with `| head`. No message is printed."""

    exit_code = 141


def unreadable(path: object, error: OSError) -> StorageError:
    """Return the error for a file that cannot be opened or read."""
    kind = NotFoundError if isinstance(error, FileNotFoundError) else StorageError
    return kind(f"{path}: cannot be read ({error.strerror})")
