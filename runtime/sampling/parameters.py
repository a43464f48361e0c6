"""How tokens are sampled: every option declared once, with its range, its default and its description.

The command line, prompt files, the configuration and HTTP read these fields.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Self

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from anespec.manifests.errors import RequestError
from anespec.manifests.formatting import listed, printable, quoted
from anespec.runtime.sampling.ranges import Range

BIASES = Range(-100.0, 100.0)
"""What a bias of a logit may be."""

_SEEDS = 1 << 64
_SHOWN = 40


class GrammarKind(StrEnum):
    """The languages that a grammar may be written in; `json` is any JSON value and needs no text."""

    GBNF = "gbnf"
    LARK = "lark"
    REGEX = "regex"
    JSON_SCHEMA = "json_schema"
    JSON = "json"


class Grammar(BaseModel):
    """What the output must match, from its first token to its last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: GrammarKind
    text: str = ""


def _pairs(value: object) -> object:
    """Biases as JSON has them, a mapping by token or a list of lists, as pairs."""
    if isinstance(value, Mapping):
        return tuple((int(token) if str(token).isdecimal() else token, bias) for token, bias in value.items())
    if isinstance(value, list):
        return tuple(tuple(pair) if isinstance(pair, list) else pair for pair in value)
    return value


def _in_range(pairs: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    for token, bias in pairs:
        if bias not in BIASES:
            reason = f"logit_bias of token {token} is {bias}; it must lie {BIASES}"
            raise PydanticCustomError("bias", "{reason}", {"reason": reason})
    return pairs


class SamplingParameters(BaseModel):
    """How tokens are sampled; the defaults are greedy.

    `temperature` 0 takes the likeliest token, the lowest id on ties. `top_k` 0, `top_p` 1, `min_p` 0,
    `typical_p` 1 (Meister et al. 2022, arXiv:2202.00666), `repetition_penalty` 1 and the other penalties 0
    are off. `repetition_penalty` looks at prompt and output (Keskar et al. 2019, arXiv:1909.05858);
    `presence_penalty` and `frequency_penalty` at the output alone, as OpenAI's API describes them.
    `logit_bias` is (token, bias) pairs, or a mapping. `logprobs` of None tells no logprobs, 0 those of the
    output alone, n also those of the n likeliest tokens.

    Raises RequestError for a value out of range and for an unknown name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    temperature: float = Field(
        0.0, ge=0.0, le=100.0, description="0 is greedy, 1 the model's own distribution."
    )
    top_k: int = Field(0, ge=0, le=2**31 - 1, description="Sample from the K likeliest tokens only.")
    top_p: float = Field(1.0, ge=0.0, le=1.0, description="Nucleus sampling.")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the likeliest.")
    typical_p: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="Keep tokens about as likely as expected, up to this share.",
    )
    seed: int = Field(0, ge=0, le=_SEEDS - 1, description="Same seed, same text.")
    repetition_penalty: float = Field(
        1.0, ge=0.01, le=100.0, description="Divide the logits of tokens seen before, prompt included."
    )
    presence_penalty: float = Field(
        0.0, ge=-2.0, le=2.0, description="Lower the logits of tokens in the output, once."
    )
    frequency_penalty: float = Field(
        0.0, ge=-2.0, le=2.0, description="Lower them by this much per occurrence."
    )
    logit_bias: Annotated[
        tuple[tuple[int, float], ...], BeforeValidator(_pairs), AfterValidator(_in_range)
    ] = Field((), description="Add a bias to the logits of tokens.")
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Tell the logprob of each token, and of the N likeliest."
    )
    grammar: Grammar | None = Field(None, description="What the output must match.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RequestError(_complaint(error, type(self))) from None

    def with_changes(self, **changes: Any) -> Self:
        """A copy with other values, checked as at the beginning."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    @property
    def has_penalties(self) -> bool:
        """Whether a token depends on which tokens came before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of answer number `choice`, from 0 on, where several are asked for: the next one for each."""
    return (seed + choice) % _SEEDS


def range_of(field: FieldInfo) -> Range | None:
    """The numbers that a field takes; None where it is not declared with both limits."""
    lowest = next((mark.ge for mark in field.metadata if isinstance(mark, Ge)), None)
    highest = next((mark.le for mark in field.metadata if isinstance(mark, Le)), None)
    if isinstance(lowest, int | float) and isinstance(highest, int | float):
        return Range(lowest, highest)
    return None


RANGES: Mapping[str, Range] = MappingProxyType(
    {
        name: allowed
        for name, field in SamplingParameters.model_fields.items()
        if (allowed := range_of(field)) is not None
    }
)
"""By the names of SamplingParameters."""


def _complaint(error: ValidationError, options: type[BaseModel]) -> str:
    """The first thing that is wrong, as one sentence."""
    first = error.errors(include_url=False)[0]
    name, *inner = map(str, first["loc"])
    value = first["input"]
    shown = quoted(value, _SHOWN) if isinstance(value, str) else printable(str(value), _SHOWN)
    if first["type"] == "extra_forbidden" and not inner:
        return f"there is no option {quoted(name)}; the options are {listed(list(options.model_fields))}"
    if first["type"] == "bias":
        return str(first["msg"])
    allowed = range_of(options.model_fields[name])
    if allowed is not None and first["type"] in ("int_type", "float_type"):
        return (
            f"{name} is {shown}; it must be {'an integer' if allowed.of_integers else 'a number'} {allowed}"
        )
    if allowed is not None:
        return f"{name} is {shown}; it must lie {allowed}"
    message = str(first["msg"])
    return f"{'.'.join((name, *inner))} is {shown}: {message[:1].lower()}{message[1:]}"
