"""Why an answer ended, in OpenAI's words."""

from typing import Literal

from anespec.runtime.completion import Summary
from anespec.runtime.requests import FinishReason


def finish_reason(summary: Summary) -> Literal["stop", "length"]:
    """`stop` where the model or a stop string ended it, else `length`: of the answer, context or time."""
    return "stop" if summary.finish is FinishReason.STOP else "length"
