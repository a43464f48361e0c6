"""The requests of callers, and the events that the engine returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import index
from typing import TYPE_CHECKING

from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import RowKind
from anespec.runtime.sampling import SamplingParameters, TokenLogprob
from anespec.system.errors import LONGER_CONTEXT, PromptTooLongError, RequestError
from anespec.system.formatting import shown

if TYPE_CHECKING:
    from anespec.runtime.sampling import GrammarTokens


@dataclass(frozen=True)
class Principal:
    """The client of a request, and its time limit.

    Data of an `tenant`'s requests is never used for another tenant; requests of higher `priority` come first.
    `seconds` is the limit from the request to its end, None for no limit. `name` is the tenant's name in
    logs. An administrator sees the figures of all tenants together, others only their own.
    """

    tenant: str = ""
    priority: int = 0
    seconds: float | None = None
    name: str = ""
    is_admin: bool = False


class FinishReason(StrEnum):
    """Why a sequence ended.

    STOP: the model chose an end token, its grammar allows no further one, or the caller found a stop
    string and said so. LENGTH: it reached max_tokens. CONTEXT: the context was full before that. TIME: it
    took as long as it may. CANCELLED: the caller gave it up. FAILED: its logits were not numbers, or the
    verifier failed; `Event.error` says more.
    """

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    TIME = "time"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class Request:
    """One prompt to be continued.

    `max_tokens` of None means up to the context's end. A token in `end_ids` ends the sequence and
    is no part of its output; leave the set empty to ignore end tokens. What is known of an `tenant`'s
    requests serves no other tenant: neither prefixes nor what draft sources learn. Sources may copy from the
    tokens of `reference`; without `speculate` nothing is drafted.
    Of the requests that wait, those of higher `priority` come first, and among equals tenants take turns.
    After `seconds` in the queue and in passes it ends with the tokens that it has by then. A grammar needs
    `grammar_tokens`, which a model has once.
    """

    prompt: Sequence[int]
    max_tokens: int | None = None
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    end_ids: frozenset[int] = frozenset()
    tenant: str = ""
    reference: Sequence[int] = ()
    speculate: bool = True
    priority: int = 0
    seconds: float | None = None
    grammar_tokens: "GrammarTokens | None" = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if self.seconds is not None and not self.seconds > 0:
            raise RequestError(f"seconds is {self.seconds}; it must be more than 0")


@dataclass(frozen=True)
class OutputToken:
    """A committed token.

    `kind` is DRAFT where a draft row of `source` had guessed it, FORCED if it is the only one that the
    grammar allows, CARRY if it was sampled and no row had been run for it. `logprob` and `top` are those of
    the row before it, where the request wants them.
    """

    id: int
    kind: RowKind
    source: str | None = None
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Event:
    """The results of one step for one sequence: committed tokens, and the end if it was reached."""

    sequence: int
    statistics: RequestStats
    tokens: tuple[OutputToken, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None


def checked_prompt(request: Request, context: int, vocabulary: int) -> list[int]:
    """The prompt's tokens.

    Raises:
        RequestError: there are none, more than the context holds, or one that is none of the vocabulary's.
    """
    if len(request.prompt) > context:
        raise PromptTooLongError(
            f"the prompt has {len(request.prompt)} tokens but the context only {context}; "
            f"shorten the prompt, or give the model a longer context ({LONGER_CONTEXT})"
        )
    try:
        prompt = [index(token) for token in request.prompt]
    except TypeError:
        raise RequestError("the prompt has something that is no token id; ids are integers") from None
    if not prompt:
        raise RequestError("the prompt is empty; it needs at least one token")
    stranger = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if stranger is not None:
        raise RequestError(
            f"the prompt has token {shown(stranger)}, but the vocabulary has {vocabulary} tokens; "
            "use this model's tokenizer"
        )
    return prompt
