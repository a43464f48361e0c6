"""How tokens are sampled: every option declared once, with its range, its default and its description.

The command line, prompt files, the configuration and HTTP read these fields.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from anespec.manifests.errors import RequestError
from anespec.manifests.options import Flag, Options, Range, range_of

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


class Grammar(Options):
    """What the output must match, from its first token to its last."""

    kind: GrammarKind
    text: str = ""


def _read_biases(value: Any) -> Any:
    """A mapping of biases by token, or a list of pairs, as pairs."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list) else value


def _read_bias(value: Any) -> Any:
    """`ID=BIAS` as a pair; JSON has the id as text."""
    try:
        if isinstance(value, str):
            token, _, bias = value.partition("=")
            return int(token), float(bias)
        token, bias = value
        return (int(token), bias) if isinstance(token, str) else (token, bias)
    except (TypeError, ValueError):
        raise RequestError(f"{str(value)[:_SHOWN]!r} is not ID=BIAS, such as 13=-5") from None


TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=BIASES.lowest, le=BIASES.highest)]


class SamplingParameters(Options):
    """How tokens are sampled; the defaults are greedy.

    `temperature` 0 takes the likeliest token, the lowest id on ties. `top_k` 0, `top_p` 1, `min_p` 0,
    `typical_p` 1 (Meister et al. 2022, arXiv:2202.00666), `repetition_penalty` 1 and the other penalties 0
    are off. `repetition_penalty` looks at prompt and output (Keskar et al. 2019, arXiv:1909.05858);
    `presence_penalty` and `frequency_penalty` at the output alone, as OpenAI's API describes them.
    `logit_bias` is (token, bias) pairs, or a mapping. `logprobs` of None tells no logprobs, 0 those of the
    output alone, n also those of the n likeliest tokens.

    Raises:
        RequestError: a value is of another type or out of its range, or there is no such option.
    """

    model_config = ConfigDict(strict=True)

    temperature: float = Field(
        default=0.0, ge=0.0, le=100.0, description="0 is greedy, 1 the model's own distribution."
    )
    top_k: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Sample from the K likeliest tokens only; 0 is off."
    )
    top_p: float = Field(default=1.0, ge=0.0, le=1.0, description="Nucleus sampling; 1 is off.")
    min_p: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the likeliest; 0 is off."
    )
    typical_p: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Keep the most typical tokens up to this share; 1 is off.",
    )
    repetition_penalty: Annotated[float, Flag(names=("--repetition-penalty", "--repeat-penalty"))] = Field(
        default=1.0,
        ge=0.01,
        le=100.0,
        description="Divide the logits of tokens seen before; 1 is off.",
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2.0, le=2.0, description="Lower the logits of tokens in the output, once; 0 is off."
    )
    frequency_penalty: float = Field(
        default=0.0, ge=-2.0, le=2.0, description="Lower them by this much per occurrence; 0 is off."
    )
    logit_bias: Annotated[
        tuple[Annotated[tuple[TokenId, Bias], BeforeValidator(_read_bias)], ...],
        BeforeValidator(_read_biases),
        Flag(metavar="ID=BIAS", multiple=True),
    ] = Field(
        default=(), description=f"Add BIAS, {BIASES}, to the logit of token ID; may be given several times."
    )
    seed: int = Field(default=0, ge=0, le=_SEEDS - 1, description="Same seed, same text.")
    logprobs: Annotated[int | None, Flag(default="off")] = Field(
        default=None, ge=0, le=20, description="Tell the logprob of each token, and of the N likeliest."
    )
    grammar: Annotated[Grammar | None, Flag(shown=False)] = Field(
        default=None, description="What the output must match."
    )

    @property
    def has_penalties(self) -> bool:
        """Whether a token depends on which tokens came before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of answer number `choice`, from 0 on, where several are asked for: the next one for each."""
    return (seed + choice) % _SEEDS


RANGES: Mapping[str, Range] = MappingProxyType(
    {
        name: allowed
        for name, field in SamplingParameters.model_fields.items()
        if (allowed := range_of(field)) is not None
    }
)
"""By the names of SamplingParameters."""
