"""Define the common fields of Ollama's requests for text, and convert them to options."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from anespec.runtime.options import GenerationOptions
from anespec.runtime.sampling.parameters import Grammar, SamplingParameters
from anespec.runtime.server.meaning import MeantBody
from anespec.runtime.server.models import Models
from anespec.runtime.server.openai.sampling_fields import StopStrings, TopK, repetition, rivals
from anespec.runtime.server.openai.schema_limits import schema_grammar

# Names of models in Ollama's format.

LATEST = ":latest"
"""The default tag of a name."""


def known_as(models: Models, name: str) -> str:
    """Return the id of the model with this name; the name itself if there is none."""
    ids = {card.id for card in models.cards}
    return name if name in ids else name.removesuffix(LATEST)


def _whole(value: Any) -> Any:
    """Convert a whole float to an integer, since some clients send 40.0 for 40."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


FILTERS = SamplingParameters(top_k=40, top_p=0.9)
"""Ollama's defaults, used if neither the request nor the model sets a value."""


class OllamaOptions(MeantBody):
    """Sampling options with Ollama's names; the model supplies missing ones.

    By default there is no repeat penalty, and one covers all tokens unless `repeat_last_n` is set. Options
    for the machine or the context, such as `num_ctx`, are ignored: an artifact's context is set at
    conversion.
    """

    place: ClassVar[str] = "options."

    num_predict: Whole | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: Annotated[TopK, BeforeValidator(_whole)] = None
    top_p: float | None = Field(default=None, ge=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    typical_p: float | None = Field(default=None, ge=0, le=1)
    seed: Whole | None = Field(default=None, ge=-(2**63), le=2**64 - 1)
    repeat_last_n: Whole | None = Field(default=None, ge=-1, le=2**31 - 1)
    repeat_penalty: float | None = Field(default=None, ge=0.01, le=100)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: StopStrings = None

    @property
    def generation(self) -> GenerationOptions:
        """Return the fields as options; a negative seed means none."""
        chosen: dict[str, Any] = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "seed": self.seed if self.seed is not None and self.seed >= 0 else None,
            "max_tokens": self.num_predict if self.num_predict is not None and self.num_predict > 0 else None,
            "stop": tuple(self.stop) if self.stop else None,
            "typical_p": self.typical_p,
            "min_p": self.min_p,
            **repetition(self.repeat_penalty, self.repeat_last_n),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        return GenerationOptions(**{name: value for name, value in chosen.items() if value is not None})


class OllamaBody(MeantBody):
    """The common fields of requests. `keep_alive` has no effect: models are unloaded when others need the
    memory."""

    limit: ClassVar[str] = "options.num_predict"

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
        """Return whether the answer is streamed, which is the default."""
        return self.stream is not False

    @property
    def grammar(self) -> Grammar | None:
        """Return the grammar of the answer. Raises ApiError if it is too large."""
        if not self.format:
            return None
        return schema_grammar({"type": "object"} if self.format == "json" else self.format, "format")

    @property
    def variables(self) -> dict[str, object]:
        """Return the template's variables for reasoning."""
        if self.think is None:
            return {}
        said = {} if isinstance(self.think, bool) else {"reasoning_effort": self.think}
        return {"enable_thinking": self.think is not False, **said}

    @property
    def generation(self) -> GenerationOptions:
        """Return the fields as options. Raises ApiError or RequestError if they are invalid."""
        chosen = (self.options or OllamaOptions()).generation
        return chosen.with_changes(logprobs=rivals(self.logprobs, self.top_logprobs))
