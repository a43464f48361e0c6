"""What a caller hands to the engine and what it gets back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from anespec.manifests.errors import RequestError
from anespec.runtime.drafters import Drafter
from anespec.runtime.passes import RowKind
from anespec.runtime.sampling import SamplingParameters


class FinishReason(StrEnum):
    """Why a sequence ended.

    STOP: the model drew an end token, or the caller found a stop string and said so. LENGTH: it
    reached max_tokens. CONTEXT: the context was full before that. CANCELLED: the caller gave it up.
    FAILED: its logits were not numbers; `Event.error` says more, and other sequences go on.
    """

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class Request:
    """One prompt to be continued.

    `max_tokens` of None means up to the context's end. A token in `end_ids` ends the sequence and
    is no part of its output; leave the set empty to ignore end tokens. `drafter` belongs to this
    request alone.
    """

    prompt: Sequence[int]
    max_tokens: int | None = None
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    drafter: Drafter | None = None
    end_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1")


@dataclass
class Statistics:
    """What a sequence cost so far; final once the event with its finish reason is out.

    A pass that ran prompt rows of the sequence is a prompt pass, any other one a decode pass. The
    first token falls out of the last prompt pass. `drawn_in_decode` counts the tokens drawn and
    kept in decode passes, a final end token included. `proposed_by_position[i]` counts the drafts
    whose token number i was run, `accepted_by_position[i]` those where it was right.
    Seconds: waiting for a region; from there to the first token; from there on. They include what
    the same passes did for other sequences.
    """

    prompt_tokens: int
    reused_tokens: int = 0
    output_tokens: int = 0
    prompt_passes: int = 0
    decode_passes: int = 0
    drawn_in_decode: int = 0
    proposed_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafter_error: str | None = None

    @property
    def passes(self) -> int:
        """Passes in which the sequence had rows."""
        return self.prompt_passes + self.decode_passes

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per decode pass: exactly 1 without speculation; 0 before the first decode pass."""
        return self.drawn_in_decode / self.decode_passes if self.decode_passes else 0.0

    @property
    def proposed(self) -> int:
        """Draft rows run."""
        return sum(self.proposed_by_position)

    @property
    def accepted(self) -> int:
        """Draft rows that were right."""
        return sum(self.accepted_by_position)

    def count_draft(self, proposed: int, accepted: int) -> None:
        """Add one pass's draft."""
        missing = proposed - len(self.proposed_by_position)
        self.proposed_by_position += [0] * missing
        self.accepted_by_position += [0] * missing
        for i in range(proposed):
            self.proposed_by_position[i] += 1
            self.accepted_by_position[i] += i < accepted


@dataclass(frozen=True)
class OutputToken:
    """A committed token: DRAFT where a draft row had guessed it, CARRY where a pass ended with it."""

    id: int
    kind: RowKind


@dataclass(frozen=True)
class Event:
    """What one step did for one sequence: tokens committed, and the end if it came.

    `statistics` is the sequence's own, kept up to date until the end.
    """

    sequence: int
    statistics: Statistics
    tokens: tuple[OutputToken, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None
