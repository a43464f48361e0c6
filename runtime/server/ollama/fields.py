"""The fields that Ollama's requests for text have in common, and what they come to."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from anespec.runtime.options import GenerationOptions
from anespec.runtime.sampling.parameters import Grammar, GrammarKind, SamplingParameters
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.models import Models
from anespec.runtime.server.openai.sampling_fields import StopStrings, rivals
from anespec.runtime.server.openai.schema_limits import require_modest

# Models' names as Ollama's clients write them.

LATEST = ":latest"
"""The tag of a name that is written without one."""


def known_as(models: Models, name: str) -> str:
    """The id of the model that is called so; the name itself where there is none."""
    ids = {card.id for card in models.cards}
    return name if name in ids else name.removesuffix(LATEST)


def _whole(value: Any) -> Any:
    """Clients write 40 as 40.0, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


FILTERS = SamplingParameters(top_k=40, top_p=0.9)
"""Ollama's, where neither the request nor the model says another."""


class OllamaOptions(Body):
    """Sampling options in Ollama's names; the model supplies missing ones.

    By default there is no penalty: Ollama's covers the last 64 tokens, this one all of them. Options of the
    machine or the context, such as `num_ctx`, are ignored: an artifact's context is set at conversion.
    """

    num_predict: Whole | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: Whole | None = Field(default=None, ge=0, le=2**31 - 1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, ge=0, le=1)
    seed: Whole | None = Field(default=None, ge=-(2**63), le=2**64 - 1)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: StopStrings = None

    @property
    def generation(self) -> GenerationOptions:
        """The fields as options; a seed below zero means none."""
        chosen: dict[str, Any] = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "seed": self.seed if self.seed is not None and self.seed >= 0 else None,
            "max_tokens": self.num_predict if self.num_predict is not None and self.num_predict > 0 else None,
            "stop": tuple(self.stop) if self.stop else None,
            "typical_p": self.typical_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        return GenerationOptions(**{name: value for name, value in chosen.items() if value is not None})


class OllamaBody(Body):
    """A request. `keep_alive` is taken and has no effect: models are unloaded when others need the memory."""

    model: str = Field(min_length=1)
    stream: bool | None = None
    options: OllamaOptions | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)

    @property
    def streams(self) -> bool:
        """Whether the answer comes as lines, which is the default."""
        return self.stream is not False

    @property
    def grammar(self) -> Grammar | None:
        """The grammar of the answer. Raises ApiError if it is too large."""
        if not self.format:
            return None
        require_modest(self.format, "format")
        schema = {"type": "object"} if self.format == "json" else self.format
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))

    @property
    def variables(self) -> dict[str, object]:
        """The template's variables for reasoning, in the names that templates use."""
        if self.think is None:
            return {}
        said = {} if isinstance(self.think, bool) else {"reasoning_effort": self.think}
        return {"enable_thinking": self.think is not False, **said}

    @property
    def generation(self) -> GenerationOptions:
        """As options. Raises ApiError or RequestError where that is not possible."""
        chosen = (self.options or OllamaOptions()).generation
        return chosen.with_changes(logprobs=rivals(self.logprobs, self.top_logprobs))
