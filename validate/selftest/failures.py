"""What an exception of a library or of Core ML comes to in a report."""

from anespec.manifests.coreml_errors import known_error
from anespec.manifests.errors import AnespecError
from anespec.manifests.formatting import LONGEST_REASON, printable
from anespec.validate.selftest.records import Failure


def failure_of(error: Exception, stage: str) -> Failure:
    """What was said, and what it means where it is known of Core ML."""
    text = printable(" ".join(str(error).split()) or type(error).__name__, LONGEST_REASON)
    if isinstance(error, AnespecError):
        return Failure(stage=stage, text=text)
    known = known_error(str(error))
    if known is None:
        return Failure(stage=stage, text=f"{type(error).__name__}: {text}")
    return Failure(stage=stage, text=text, meaning=known.meaning, mend=known.mend, code=known.code)
