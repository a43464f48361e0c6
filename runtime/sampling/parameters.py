"""Declare the sampling parameters once, each with its range, default and description.

The command line, prompt files, the configuration and the HTTP API use these fields.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from anespec.system.errors import RequestError
from anespec.system.formatting import shown
from anespec.system.options import Flag, Options, Range

BIASES = Range(-100.0, 100.0)
"""The range of a logit's bias."""

_SEEDS = 1 << 64


class GrammarKind(StrEnum):
    """The languages that a grammar may be written in; `json` is any JSON value and needs no text."""

    GBNF = "gbnf"
    LARK = "lark"
    REGEX = "regex"
    JSON_SCHEMA = "json_schema"
    JSON = "json"


class Grammar(BaseModel):
    """The grammar of the output, from its first token to its last.

    `frame` is a Lark grammar of the whole output, in which this grammar is `@answer`; it can allow reasoning
    before the answer, for example. Without a frame the whole output must match this grammar.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: GrammarKind
    text: str = ""
    frame: str = ""

    @property
    def characters(self) -> int:
        """The length of the grammar and its frame in characters."""
        return len(self.text) + len(self.frame)


def _read_biases(value: object) -> object:
    """Return biases in JSON's forms (a mapping by token or a list of lists) as pairs."""
    if isinstance(value, Mapping):
        return tuple((int(token) if str(token).isdecimal() else token, bias) for token, bias in value.items())
    if isinstance(value, list):
        return tuple(tuple(pair) if isinstance(pair, list) else pair for pair in value)
    return value


def _read_bias(value: object) -> object:
    """Return a bias in the command line's form `ID=BIAS` as a pair."""
    if not isinstance(value, str):
        return value
    token, _, bias = value.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise RequestError(f"{value[:40]!r} is not ID=BIAS, such as 13=-5") from None


def _require_bias(pair: tuple[int, float]) -> tuple[int, float]:
    token, bias = pair
    if token < 0:
        raise RequestError(f"logit_bias names token {shown(token)}; ids begin at 0")
    if bias not in BIASES:
        raise RequestError(f"logit_bias of token {token} is {bias}; it must lie {BIASES}")
    return pair


class SamplingParameters(Options):
    """The parameters of sampling; the defaults are greedy.

    `temperature` 0 takes the likeliest token, the lowest id on ties. These values are off: `top_k` 0, `top_p`
    1, `min_p` 0, `typical_p` 1 (Meister et al. 2022, arXiv:2202.00666), `repetition_penalty` 1, and 0 for the
    other penalties. `repetition_penalty` counts prompt and output (Keskar et al. 2019, arXiv:1909.05858), or
    their last `repetition_window` tokens, as llama.cpp does;
    `presence_penalty` and `frequency_penalty` count the output alone, as OpenAI's API describes them.
    `logit_bias` is (token, bias) pairs, or a mapping. With `logprobs` None no logprobs are reported, with 0
    those of the output tokens, with n also those of the n likeliest tokens.

    Raises:
        RequestError: a value is out of range, or a name is unknown.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    temperature: float = Field(
        default=0.0,
        ge=0.0,
        le=100.0,
        description="The temperature: 0 is greedy, 1 is the model's own distribution.",
    )
    top_k: int = Field(
        default=0, ge=0, le=2**31 - 1, description="Sample from the K likeliest tokens only; 0: off."
    )
    top_p: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Sample from the likeliest tokens that together reach this share (nucleus); 1: off.",
    )
    min_p: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Drop tokens less likely than this share of the likeliest one; 0: off.",
    )
    typical_p: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        description="Keep the tokens whose information is nearest to the entropy, up to this share; 1: off.",
    )
    seed: int = Field(
        default=0, ge=0, le=_SEEDS - 1, description="The random seed: the same seed gives the same text."
    )
    repetition_penalty: Annotated[float, Flag(names=("--repetition-penalty", "--repeat-penalty"))] = Field(
        default=1.0,
        ge=0.01,
        le=100.0,
        description="Divide the logits of tokens seen before, prompt included; 1: off.",
    )
    repetition_window: Annotated[int, Flag(names=("--repetition-window", "--repeat-last-n"))] = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="The number of last tokens that the repetition penalty looks at; 0: all.",
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2.0, le=2.0, description="Lower the logits of tokens in the output, once; 0: off."
    )
    frequency_penalty: float = Field(
        default=0.0,
        ge=-2.0,
        le=2.0,
        description="Lower the logits of tokens in the output, per occurrence; 0: off.",
    )
    logit_bias: Annotated[
        tuple[Annotated[tuple[int, float], BeforeValidator(_read_bias), AfterValidator(_require_bias)], ...],
        BeforeValidator(_read_biases),
        Flag(metavar="ID=BIAS", multiple=True),
    ] = Field(
        default=(), description=f"Add BIAS, {BIASES}, to the logit of token ID; may be given several times."
    )
    logprobs: Annotated[int | None, Flag(default="off")] = Field(
        default=None, ge=0, le=20, description="Report the logprobs of each token and of the N likeliest."
    )
    grammar: Annotated[Grammar | None, Flag(shown=False)] = Field(
        default=None, description="A grammar that the output must match."
    )

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        Only the changed fields are validated: they are independent, and validating many biases takes long.

        Raises:
            RequestError: a changed value is not valid.
        """
        checked = type(self)(**changes)
        return self.model_copy(update={name: getattr(checked, name) for name in changes})

    def completed_by(self, *others: "SamplingParameters") -> Self:
        """Return a copy in which each unset field has its value from the first of `others` that sets it.

        A field is set if it was given to the constructor or to `with_changes`.
        """
        update: dict[str, Any] = {}
        for other in others:
            for name in other.model_fields_set - self.model_fields_set - update.keys():
                update[name] = getattr(other, name)
        return self.model_copy(update=update)

    @property
    def has_penalties(self) -> bool:
        """Whether a token depends on the tokens before it."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of choice number `choice`, counted from 0, of a request with `seed`."""
    return (seed + choice) % _SEEDS


# A model's makers suggest sampling parameters in keys of its GGUF, which llama.cpp reads, too. Converters
# copy them from the model's generation_config.json. `penalty_repeat` is ignored: in llama.cpp it counts the
# last tokens only, here `repetition_penalty` counts all tokens.

PREFIX = "general.sampling."
KEYS: Mapping[str, str] = MappingProxyType(
    {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
)

_DIGITS = 6
"""The decimal digits that a float32 holds: rounded to them, 0.95 is 0.95 again."""


def suggested_sampling(metadata: Mapping[str, object]) -> SamplingParameters:
    """Return the sampling parameters in a GGUF's metadata as set fields; invalid values are ignored."""
    found = SamplingParameters()
    for name, key in KEYS.items():
        value = metadata.get(PREFIX + key)
        if name == "top_k" and isinstance(value, int) and value < 0:
            value = 0  # llama.cpp uses negative numbers for all tokens
        if value is None:
            continue
        if isinstance(value, float):
            value = float(f"{value:.{_DIGITS}g}")
        try:
            found = found.with_changes(**{name: value})
        except RequestError:
            continue
    return found
