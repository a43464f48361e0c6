"""The options of `bench run`, declared once."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from anespec.runtime.options import LoadOptions
from anespec.system.errors import RequestError
from anespec.system.options import Flag

MAX_RUNS = 1000


class PromptClass(StrEnum):
    """A kind of text to write."""

    JSON = "json"
    PASSAGE = "passage"
    CODE = "code"
    EDIT = "edit"
    CHAT = "chat"


class TextKind(StrEnum):
    """A kind of text that a suite's prompt asks for (see suites/texts.py)."""

    JSON_RAG = "json_rag"
    PASSAGE = "passage"
    CODE = "code"
    ENCYCLOPAEDIA = "encyclopaedia"
    INSTRUCTIONS = "instructions"
    QUESTIONS = "questions"
    EDITING = "editing"


def _listed(value: Any) -> Any:
    """Split `json,code` into its parts; spaces separate too."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _counts(value: Any) -> Any:
    """Return the numbers of a text such as `1,3`, ascending and without duplicates."""
    parts = _listed(value)
    try:
        numbers = sorted({int(part) for part in parts})
    except (TypeError, ValueError):
        raise RequestError(f"{value!r} is not a list of numbers; write it as 48,144") from None
    if not numbers or numbers[0] < 1:
        raise RequestError(f"{value!r} holds no number, or one below 1; give numbers of at least 1")
    return tuple(numbers)


class BenchOptions(LoadOptions):
    """What `bench run` measures, and how often."""

    classes: Annotated[tuple[PromptClass, ...], BeforeValidator(_listed), Flag(metavar="CLASS,…")] = Field(
        default=tuple(PromptClass), min_length=1, description="Kinds of text to write."
    )
    lengths: Annotated[tuple[int, ...], BeforeValidator(_counts), Flag(metavar="N,…")] = Field(
        default=(48, 144), description="The most tokens to write after each prompt."
    )
    drafts: Annotated[
        tuple[int, ...] | None,
        BeforeValidator(_counts),
        Flag(metavar="K,…", default="1, 2, … as many as fit"),
    ] = Field(default=None, description="The most drafts of a pass, each number in turn.")
    runs: int = Field(
        default=3, ge=1, le=MAX_RUNS, description="Counted runs of each text, after one warm-up."
    )
    temperature: float = Field(default=0.0, ge=0, le=10, description="Sampling temperature; 0 is greedy.")
    seed: int = Field(default=1, ge=0, description="Seed of the sampling.")
    energy: bool = Field(
        default=False,
        description="End if the energy of a token cannot be measured. On a Mac this asks for the password "
        "that its meter needs; without this it is measured only where nothing must be asked.",
    )

    @property
    def sampling_text(self) -> str:
        """Return the sampling in words, for reports."""
        return f"temperature {self.temperature:g}, seed {self.seed}" if self.temperature else "greedy"
