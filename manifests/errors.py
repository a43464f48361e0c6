"""The errors a person meets, and the exit code of each.

Every expected failure (bad input, a missing file, a full disk, a red gate) is raised as an
`AnespecError` whose message is one sentence naming the thing and the mend. The command line prints
that sentence and exits with the error's code; anything else is a bug and shows a traceback.

Exit codes: 0 success, 1 other failure, 2 wrong usage (click), 3 unusable GGUF, 4 unsupported
model, 5 unusable artifact, 6 disk or file system, 7 a request that cannot be served,
10 + n a red gate (11 residency, 12 golden, 13 exactness, 14 quality), 130 interrupted.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class AnespecError(Exception):
    """A failure that a person can act on; its text is one clear sentence.

    `facts` are what a program may want to know beside the sentence, such as a red gate's figures.
    """

    exit_code: ClassVar[int] = 1
    facts: Mapping[str, object] = MappingProxyType({})


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


class InterruptedRunError(AnespecError):
    """Ctrl-C ended a run; the text says what is kept of it."""

    exit_code = 130


class ResidencyGateError(AnespecError):
    """The residency gate is red."""

    exit_code = 11


class GoldenGateError(AnespecError):
    """The golden gate is red."""

    exit_code = 12


class ExactnessGateError(AnespecError):
    """The exactness gate is red."""

    exit_code = 13


class QualityGateError(AnespecError):
    """The quality gate is red."""

    exit_code = 14
