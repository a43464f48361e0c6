"""The options of `tune`, declared once for Python and the command line."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from anespec.manifests.schema import Target
from anespec.manifests.usual_target import usual_target
from anespec.runtime.options import LONGEST_PASS, BackendOptions
from anespec.system.options import Flag


def _read_formats(value: Any) -> Any:
    """Split `int8-channel lut8` at spaces or semicolons, since a format may contain commas."""
    return tuple(value.replace(";", " ").split()) if isinstance(value, str) else value


class TuneOptions(BackendOptions):
    """What is searched, for which workload, and where results are written."""

    target: Target = Field(
        default=usual_target(), description="Target to build for; cpu tunes the portable backend."
    )
    context: Annotated[int | None, Flag(default="as convert")] = Field(
        default=None, ge=1, description="Tokens per sequence."
    )
    weights: Annotated[tuple[str, ...], BeforeValidator(_read_formats), Flag(metavar="'FORMAT FORMAT…'")] = (
        Field(
            default=("int8-channel", "lut8"),
            min_length=1,
            description="Weight formats to choose between. Smaller formats are faster and less precise: add "
            "lut6 or lut4 only if their quality suffices (anespec validate --quality).",
        )
    )
    prompt_tokens: int = Field(default=512, ge=1, description="Tokens of the prompt to optimise for.")
    answer_tokens: int = Field(default=256, ge=1, description="Tokens of the answer to optimise for.")
    ignore_rules: bool = Field(
        default=False,
        description="Also measure candidates that fail the residency rules, which takes longer and may find "
        "exceptions to the rules.",
    )
    trial_seconds: float = Field(
        default=1800.0,
        ge=1,
        le=LONGEST_PASS,
        description="Timeout of one measurement.",
    )
    work: Annotated[Path | None, Flag(metavar="FOLDER", default="beside the report")] = Field(
        default=None,
        description="Folder of trials while they are measured, and of the results of an interrupted run.",
    )
