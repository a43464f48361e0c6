"""The options of `validate`, declared once for Python and the command line."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from anespec.runtime.options import BackendOptions
from anespec.system.errors import UsageError
from anespec.system.options import Flag
from anespec.validate.exactness.effort import Form

RESIDENCY, GOLDEN, EXACTNESS, QUALITY = GATES = ("residency", "golden", "exactness", "quality")
MOST_TOKENS = 1_000_000


def _read_percent(value: Any) -> Any:
    return value.removesuffix("%") if isinstance(value, str) else value


def _read_gates(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | set | frozenset) else value


class ValidateOptions(BackendOptions):
    """Which gates run, on what, and which results fail the run.

    Raises from the constructor:
        RequestError: a value has the wrong type or is out of its range.
        UsageError: options contradict or need each other, such as a quality limit without a text.
    """

    gates: Annotated[
        tuple[str, ...],
        BeforeValidator(_read_gates),
        Flag(names=("--gate",), choices=GATES, multiple=True),
    ] = Field(
        default=(),
        description="Run only this gate; may be given several times, and --quality adds its own.  "
        "[default: all]",
    )
    gguf: Path | None = Field(default=None, description="The GGUF that was converted, if it has moved.")
    quick: bool = Field(
        default=False, description="Run the exactness gate's quick form: few passes of each kind."
    )
    again: bool = Field(default=False, description="Measure again even if a recorded verdict still holds.")
    require_residency: bool = Field(
        default=False, description="Let a predicted residency verdict fail the run too."
    )
    record_plan: Path | None = Field(
        default=None, description="Write Core ML's plan to this file (on a Mac)."
    )
    replay_plan: Path | None = Field(default=None, description="Judge a plan that was recorded on a Mac.")
    quality: Annotated[Path | None, Flag(metavar="TEXT")] = Field(
        default=None, description="Score this text file (UTF-8) too: the quality gate."
    )
    quality_tokens: int = Field(
        default=512, ge=1, le=MOST_TOKENS, description="The most tokens of that text to score."
    )
    max_kl: float | None = Field(
        default=None, ge=0, le=1000, description="Quality fails above this mean KL divergence, in nats."
    )
    max_perplexity_change: Annotated[float | None, BeforeValidator(_read_percent), Flag(metavar="P%")] = (
        Field(
            default=None,
            ge=0,
            allow_inf_nan=False,
            description="Quality fails if the perplexity grew by more than this, in percent.",
        )
    )

    @property
    def form(self) -> Form:
        """The form of the exactness gate."""
        return "quick" if self.quick else "full"

    @model_validator(mode="after")
    def _require_sense(self) -> Self:
        if unknown := set(self.gates) - set(GATES):
            raise UsageError(f"there is no gate {min(unknown)!r}; choose from {', '.join(GATES)}")
        limited = (self.max_kl, self.max_perplexity_change) != (None, None)
        if self.quality is None and (QUALITY in self.gates or limited):
            raise UsageError("the quality gate, --max-kl and --max-perplexity-change need --quality TEXT")
        planned = self.require_residency or self.record_plan or self.replay_plan
        if RESIDENCY not in self.chosen and planned:
            raise UsageError("--require-residency, --record-plan and --replay-plan need the residency gate")
        return self

    @property
    def chosen(self) -> tuple[str, ...]:
        """Return the gates to run, in their order."""
        asked = {*(self.gates or GATES[:-1]), *([QUALITY] if self.quality else [])}
        return tuple(gate for gate in GATES if gate in asked)
