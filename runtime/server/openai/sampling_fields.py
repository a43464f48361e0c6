"""The fields that all requests for text have in common, and what they come to."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from anespec.runtime.options import MOST_CHOICES, MOST_STOPS, GenerationOptions
from anespec.runtime.server.bodies import Body
from anespec.runtime.server.errors import ApiError

MOST_BIASES = 4096


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


LONGEST_STOP = 1024
"""Characters: text that may begin a stop string is held, and looked at again with every token."""

StopStrings = Annotated[
    Annotated[list[Annotated[str, Field(max_length=LONGEST_STOP)]], Field(max_length=MOST_STOPS)] | None,
    BeforeValidator(_listed),
]
"""One text, or several."""


def _no_limit(value: Any) -> Any:
    return None if value == -1 else value


MostTokens = Annotated[int | None, Field(ge=1), BeforeValidator(_no_limit, json_schema_input_type=int | None)]
"""How long an answer may be; llama.cpp's clients send -1 for no limit."""


def rivals(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """How many rivals' logprobs are wanted beside the tokens' own; None where none at all.

    Raises:
        ApiError: those of rivals are wanted, and the tokens' own are not.
    """
    if logprobs:
        return top_logprobs or 0
    if top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs; set it to true", "invalid_value", "top_logprobs")
    return None


def effort_variables(effort: str | None) -> dict[str, object]:
    """The template's variables for the effort of reasoning; `none` turns reasoning off."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})


class StreamOptions(Body):
    """The data that a stream carries in addition to the text."""

    include_usage: bool = False


class SamplingFields(Body):
    """Sampling options: OpenAI's fields, and those of llama-server that OpenAI lacks.

    The requested model supplies fields that are missing or null (ServingModel.settled).
    """

    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**64 - 1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] | None
    ) = Field(default=None, max_length=MOST_BIASES)
    stop: StopStrings = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    speculate: bool = True

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with what it cost."""
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self, **changes: Any) -> GenerationOptions:
        """Return the fields as options; `changes` are those of the endpoint, None for fields that it does not
        set.

        Raises:
            RequestError: a value is out of range.
        """
        chosen = {
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repeat_penalty,
            "logit_bias": self.logit_bias,
            "stop": tuple(self.stop) if self.stop else None,
            "choices": self.n,
            "seed": None if self.seed is None else self.seed % 2**64,
            "temperature": self.temperature,
        }
        given = {name: value for name, value in (chosen | changes).items() if value is not None}
        return GenerationOptions(ignore_eos=self.ignore_eos, speculate=self.speculate, **given)
