"""What a person may choose when a model is loaded and when it generates.

Declared once for Python, the command line and JSON lines.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from anespec.manifests.errors import RequestError
from anespec.manifests.options import Flag, Options
from anespec.runtime.sampling.parameters import BIASES, RANGES

if TYPE_CHECKING:
    from anespec.runtime.sampling import SamplingParameters

BACKEND_CHOICES = ("auto", "torch", "openvino")
"""What runtime.backends knows, said here so that nothing heavy is loaded for it."""

DRAFTER_CHOICES = ("none", "lookup")

MOST_THREADS = 4 * (os.cpu_count() or 1)
"""Far more threads than processors wait for one another: a pass then takes minutes."""

MOST_CHOICES = 128


def _listed(value: Any) -> Any:
    """One text, or any sequence of them, as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _require_texts(stops: tuple[str, ...]) -> tuple[str, ...]:
    if "" in stops:
        raise RequestError("a stop string is empty; leave it out or give it a character")
    return stops


def _read_biases(value: Any) -> Any:
    """A mapping of biases by token as pairs."""
    return tuple(value.items()) if isinstance(value, Mapping) else value


def _read_bias(value: Any) -> Any:
    """`ID=BIAS` as a pair; JSON has the id as text."""
    try:
        if isinstance(value, str):
            token, _, bias = value.partition("=")
            return int(token), float(bias)
        token, bias = value
        return (int(token), bias) if isinstance(token, str) else (token, bias)
    except (TypeError, ValueError):
        raise RequestError(f"{str(value)[:40]!r} is not ID=BIAS, such as 13=-5") from None


TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=BIASES.lowest, le=BIASES.highest)]


def _in_range(name: str, default: float, description: str, **more: Any) -> Any:
    allowed = RANGES[name]
    return Field(default=default, ge=allowed.lowest, le=allowed.highest, description=description, **more)


class BackendOptions(Options):
    """What runs the shards, and on how many threads."""

    backend: Annotated[str, Flag(choices=BACKEND_CHOICES)] = Field(
        default="auto",
        description="Who executes: torch, the reference, or openvino, the fast one, which auto takes.",
    )
    threads: Annotated[int | None, Flag(default="all")] = Field(
        default=None, ge=1, le=MOST_THREADS, description="Processor threads."
    )
    verify: bool = Field(
        default=False,
        description="Read all files for their hashes, also those that are the same to the file system.",
    )


class LoadOptions(BackendOptions):
    """How a model is loaded."""

    drafter: Annotated[str, Flag(choices=DRAFTER_CHOICES)] = Field(
        default="lookup", description="Who guesses."
    )
    allow_inexact: bool = Field(default=False, description="Speculate even where it may change the text.")


class GenerationOptions(Options):
    """How one prompt is continued. The defaults are greedy.

    `max_tokens` of None means up to the context's end. Choice number i is drawn with `seed` + i.
    """

    model_config = ConfigDict(strict=True)

    max_tokens: Annotated[int | None, Flag(names=("-n", "--max-tokens"))] = Field(
        default=128, ge=1, description="Output length."
    )
    stop: Annotated[
        tuple[str, ...], BeforeValidator(_listed), AfterValidator(_require_texts), Flag(multiple=True)
    ] = Field(default=(), description="End before this text; may be given several times.")
    ignore_eos: bool = Field(default=False, description="Go on past the model's end tokens.")
    speculate: Annotated[bool, Flag(shown=False)] = Field(
        default=True, description="Fill rows with guesses, where that provably changes no token."
    )
    choices: int = Field(default=1, ge=1, le=MOST_CHOICES, description="How many continuations.")

    temperature: float = _in_range("temperature", 0.0, "0 is greedy, 1 the model's own distribution.")
    top_k: int = _in_range("top_k", 0, "Sample from the K likeliest tokens only; 0 is off.")
    top_p: float = _in_range("top_p", 1.0, "Nucleus sampling; 1 is off.")
    min_p: float = _in_range("min_p", 0.0, "Drop tokens below this share of the likeliest; 0 is off.")
    repetition_penalty: Annotated[float, Flag(names=("--repetition-penalty", "--repeat-penalty"))] = (
        _in_range(
            "repetition_penalty", 1.0, "Divide the logits of tokens seen before, prompt included; 1 is off."
        )
    )
    presence_penalty: float = _in_range(
        "presence_penalty", 0.0, "Lower the logits of tokens in the output, once; 0 is off."
    )
    frequency_penalty: float = _in_range(
        "frequency_penalty", 0.0, "Lower them by this much per occurrence; 0 is off."
    )
    logit_bias: Annotated[
        tuple[Annotated[tuple[TokenId, Bias], BeforeValidator(_read_bias)], ...],
        BeforeValidator(_read_biases),
        Flag(metavar="ID=BIAS", multiple=True),
    ] = Field(
        default=(), description=f"Add BIAS, {BIASES}, to the logit of token ID; may be given several times."
    )
    seed: int = _in_range("seed", 0, "Same seed, same text.")

    @property
    def sampling(self) -> "SamplingParameters":
        """What of them says how tokens are drawn."""
        from anespec.runtime.sampling import SamplingParameters

        return SamplingParameters(
            **{name: getattr(self, name) for name in SamplingParameters.model_fields if hasattr(self, name)}
        )
