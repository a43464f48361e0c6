"""Report the usage of an answer in OpenAI's format, and timings in llama-server's format with additions."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from anespec.runtime.drafters import REFERENCE
from anespec.runtime.engine.completion import Summary
from anespec.runtime.engine.requests import FinishReason


def finish_reason(summary: Summary) -> Literal["stop", "length"]:
    """Return `stop` if the model or a stop string ended the answer, else `length` (of answer, context or
    time)."""
    return "stop" if summary.finish is FinishReason.STOP else "length"


class PromptDetails(BaseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Details of the answer's tokens. Predictions are drafts copied from the request's `prediction`."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """The tokens of a request, all choices together; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class SourceTimings(BaseModel):
    """The counts of drafts of one source."""

    drafted: int
    accepted: int


class Timings(BaseModel):
    """The times and passes of an answer. Fields with `_n` are counts, as in llama-server."""

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
    """Return the usage of a request's choices."""
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
    """Return the timings of one choice."""
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
