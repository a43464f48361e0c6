"""What came of a prompt."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anespec.runtime.completion import Summary
    from anespec.runtime.requests import FinishReason, Statistics


@dataclass(frozen=True)
class Choice:
    """One continuation. `text` ends before a stop string; `output_ids` has its tokens too."""

    text: str
    output_ids: tuple[int, ...]
    finish: "FinishReason"
    statistics: "Statistics"

    @classmethod
    def of(cls, summary: "Summary") -> "Choice":
        """What a run came to."""
        return cls(summary.text, summary.output_ids, summary.finish, summary.statistics)


@dataclass(frozen=True)
class Completion:
    """A prompt's continuations, as many as were asked for. What it says of one, it says of the first."""

    prompt_ids: tuple[int, ...]
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def output_ids(self) -> tuple[int, ...]:
        """The first choice's tokens."""
        return self.choices[0].output_ids

    @property
    def finish(self) -> "FinishReason":
        """Why the first choice ended."""
        return self.choices[0].finish

    @property
    def statistics(self) -> "Statistics":
        """What the first choice cost."""
        return self.choices[0].statistics

    def __str__(self) -> str:
        return self.text
