"""Define the requests to the engine, and the events that it returns."""

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
    """The client that sends a request, with its rights and limits.

    Data of one tenant's requests is never used for another tenant. Requests of higher `priority` come first.
    `seconds` limits the time from the request to its end; None is no limit. `name` is the tenant's name in
    logs. An administrator sees the figures of all tenants together, other clients only their own.
    """

    tenant: str = ""
    priority: int = 0
    seconds: float | None = None
    name: str = ""
    is_admin: bool = False


class FinishReason(StrEnum):
    """Why a sequence ended.

    STOP: the model chose an end token, the grammar allows no further token, or the caller found a stop
    string. LENGTH: it reached max_tokens. CONTEXT: the context was full before that. TIME: its time limit
    passed. CANCELLED: the caller cancelled it. FAILED: its logits were not finite, or its grammar or the
    verifier failed; `Event.error` is the message.
    """

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    TIME = "time"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class Request:
    """One prompt to continue.

    The tokens `given` follow the prompt as its further part; they are returned with their logprobs. The
    output has at most `max_tokens` tokens: None means up to the end of the context, 0 that the prompt is
    computed and nothing else. A token in `end_ids` ends the sequence and is not part of its output; leave the
    set empty to ignore end tokens. Neither the prefixes of a `tenant`'s requests nor what draft sources learn
    from them is used for another tenant. Draft sources may copy from the tokens of `reference`; without
    `speculate` nothing is drafted.

    Waiting requests of higher `priority` come first; among equal ones tenants take turns. After `seconds` of
    waiting and running, or `output_seconds` after its first token, the request ends with the tokens that it
    has. A grammar needs `grammar_tokens`, of which there is one object for each model.
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
    given: Sequence[int] = ()
    output_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 0")
        if self.seconds is not None and not self.seconds > 0:
            raise RequestError(f"seconds is {self.seconds}; it must be more than 0")


@dataclass(frozen=True)
class OutputToken:
    """A committed token.

    `kind` is PROMPT if the request gave it, DRAFT if a draft of `source` had guessed it, FORCED if it is the
    only token that the grammar allows, CARRY if it was sampled and no row had run for it. `logprob` and `top`
    come from the row before, if the request wants them.
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
    """Return the prompt's tokens, without those that are given behind it.

    Raises:
        RequestError: there are none, more than the context holds, or one that is not in the vocabulary.
    """
    length = len(request.prompt) + len(request.given)
    if length > context:
        raise PromptTooLongError(
            f"the prompt has {length} tokens but the context only {context}; "
            f"shorten the prompt, or give the model a longer context ({LONGER_CONTEXT})"
        )
    try:
        prompt = [index(token) for token in (*request.prompt, *request.given)]
    except TypeError:
        raise RequestError("the prompt has an item that is not a token id; give integers") from None
    if not prompt:
        raise RequestError("the prompt is empty; it needs at least one token")
    unknown = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise RequestError(
            f"the prompt has token {shown(unknown)}, but the vocabulary has {vocabulary} tokens; "
            "use this model's tokenizer"
        )
    return prompt[: len(request.prompt)]
