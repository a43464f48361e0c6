"""The usage of an answer in OpenAI's format, and the figures of speculation in llama-server's and
anespec's."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from anespec.runtime.drafters import REFERENCE
from anespec.runtime.engine.completion import Summary
from anespec.runtime.engine.requests import FinishReason


def finish_reason(summary: Summary) -> Literal["stop", "length"]:
    """`stop` where the model or a stop string ended it, else `length`: of the answer, context or time."""
    return "stop" if summary.finish is FinishReason.STOP else "length"


class PromptDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Of the answer's tokens. Predictions are drafts that were copied from the request's `prediction`."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Tokens of a request, all choices together; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class SourceTimings(BaseModel):
    """Drafts of one source."""

    drafted: int
    accepted: int


class Timings(BaseModel):
    """How long it took, and in how many passes. `_n` are counts, as in llama-server."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    forced_n: int
    queue_ms: float
    prompt_passes: int
    decode_passes: int
    tokens_per_pass: float
    drafts: dict[str, SourceTimings]


def usage_of(summaries: Sequence[Summary], reasoning_tokens: int = 0) -> Usage:
    """The usage of a request's choices."""
    prompt = summaries[0].statistics.prompt_tokens
    output = sum(len(summary.tokens) for summary in summaries)
    predicted = [
        count for summary in summaries for count in summary.statistics.by_source if count.source == REFERENCE
    ]
    accepted = sum(count.accepted for count in predicted)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptDetails(cached_tokens=summaries[0].statistics.reused_tokens),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=reasoning_tokens,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=sum(count.proposed for count in predicted) - accepted,
        ),
    )


def timings_of(summary: Summary) -> Timings:
    """The timings of one choice."""
    counts = summary.statistics
    seconds = counts.decode_seconds
    return Timings(
        cache_n=counts.reused_tokens,
        prompt_n=counts.prompt_tokens - counts.reused_tokens,
        prompt_ms=round(counts.prefill_seconds * 1e3, 3),
        predicted_n=counts.output_tokens,
        predicted_ms=round(seconds * 1e3, 3),
        predicted_per_second=round((counts.output_tokens - 1) / seconds, 3) if seconds > 0 else 0.0,
        draft_n=counts.proposed,
        draft_n_accepted=counts.accepted,
        forced_n=counts.forced_tokens,
        queue_ms=round(counts.queue_seconds * 1e3, 3),
        prompt_passes=counts.prompt_passes,
        decode_passes=counts.decode_passes,
        tokens_per_pass=round(counts.tokens_per_pass, 4),
        drafts={
            count.source: SourceTimings(drafted=count.proposed, accepted=count.accepted)
            for count in counts.by_source
        },
    )
