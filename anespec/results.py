"""What generating from a prompt returns: `Completion` and its `Choice`s."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anespec.system.formatting import counted

if TYPE_CHECKING:
    from anespec.runtime.engine.completion import Summary
    from anespec.runtime.engine.requests import FinishReason, OutputToken
    from anespec.runtime.engine.statistics import RequestStats


@dataclass(frozen=True)
class Choice:
    """One continuation of a prompt.

    `text` ends before a stop string; `tokens` includes the stop string's tokens. Each token has its logprobs,
    if requested, and the draft source that proposed it.
    """

    text: str
    tokens: "tuple[OutputToken, ...]"
    finish: "FinishReason"
    statistics: "RequestStats"

    @classmethod
    def of(cls, summary: "Summary") -> "Choice":
        """Build a choice from the summary of a run."""
        return cls(summary.text, summary.tokens, summary.finish, summary.statistics)

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Return the ids of the tokens."""
        return tuple(token.id for token in self.tokens)


@dataclass(frozen=True)
class Completion:
    """All requested continuations of a prompt. `text`, `finish` and the like are those of the first
    choice."""

    prompt_ids: tuple[int, ...]
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """Return the first choice's text."""
        return self.choices[0].text

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Return the first choice's token ids."""
        return self.choices[0].output_ids

    @property
    def finish(self) -> "FinishReason":
        """Return the reason why the first choice ended."""
        return self.choices[0].finish

    @property
    def statistics(self) -> "RequestStats":
        """Return the statistics of the first choice."""
        return self.choices[0].statistics

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """Return what a notebook shows: the texts shortened, their lengths and rates."""
        return f"<Completion {', '.join(map(_shown, self.choices))}>"


def _shown(choice: Choice) -> str:
    statistics = choice.statistics
    seconds = statistics.decode_seconds
    rate = f" at {statistics.decoded_tokens / seconds:.1f} tokens/s" if seconds else ""
    tokens = counted(len(choice.output_ids), "token")
    return f"{_shortened(choice.text)!r}: {tokens}{rate} ({choice.finish})"


def _shortened(text: str, longest: int = 200) -> str:
    """Return a text with its middle left out if it is longer than `longest` characters."""
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
