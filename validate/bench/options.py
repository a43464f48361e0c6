"""The options of `bench run`, declared once."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from anespec.runtime.options import LoadOptions
from anespec.system.errors import RequestError
from anespec.system.options import Flag

MOST_RUNS = 1000


class PromptClass(StrEnum):
    """A kind of text."""

    JSON = "json"
    PASSAGE = "passage"
    CODE = "code"
    EDIT = "edit"
    CHAT = "chat"


def _listed(value: Any) -> Any:
    """`json,code` as its parts; spaces do as well."""
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _counts(value: Any) -> Any:
    """`1,3` as numbers, ascending and each once."""
    parts = _listed(value)
    try:
        numbers = sorted({int(part) for part in parts})
    except (TypeError, ValueError):
        raise RequestError(f"{value!r} is not a list of numbers such as 48,144") from None
    if not numbers or numbers[0] < 1:
        raise RequestError(f"{value!r} is not a list of numbers of at least 1")
    return tuple(numbers)


class BenchOptions(LoadOptions):
    """What is run, and how often."""

    classes: Annotated[tuple[PromptClass, ...], BeforeValidator(_listed), Flag(metavar="CLASS,…")] = Field(
        default=tuple(PromptClass), min_length=1, description="Kinds of text to write."
    )
    lengths: Annotated[tuple[int, ...], BeforeValidator(_counts), Flag(metavar="N,…")] = Field(
        default=(48, 144), description="Tokens to write after each prompt, at most."
    )
    drafts: Annotated[
        tuple[int, ...] | None,
        BeforeValidator(_counts),
        Flag(metavar="K,…", default="1, 2, … as many as fit"),
    ] = Field(default=None, description="Drafts of a pass, at most.")
    runs: int = Field(
        default=3, ge=1, le=MOST_RUNS, description="Runs of each, after one that warms up and is not counted."
    )
    temperature: float = Field(default=0.0, ge=0, le=10, description="0 is greedy.")
    seed: int = Field(default=1, ge=0, description="What a temperature is drawn with.")

    @property
    def sampling_text(self) -> str:
        """How tokens are sampled, in words."""
        return f"temperature {self.temperature:g}, seed {self.seed}" if self.temperature else "greedy"
