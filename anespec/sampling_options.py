"""The options of `generate` that say how tokens are drawn."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from anespec.runtime.sampling.parameters import BIASES, RANGES
from anespec.runtime.sampling.ranges import Range

if TYPE_CHECKING:
    from anespec.runtime.sampling import SamplingParameters


class Within(click.ParamType[float]):
    """A number in a range; NaN is in none."""

    def __init__(self, allowed: Range) -> None:
        """Integers alone where the range is one of integers."""
        self.allowed = allowed
        self.name = "integer" if allowed.of_integers else "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error that says the range where it is none or out of it."""
        try:
            number: float = int(value) if self.allowed.of_integers else float(value)
        except (ValueError, OverflowError):
            kind = "an integer" if self.allowed.of_integers else "a number"
            self.fail(f"{str(value)[:40]!r} is not {kind} {self.allowed}.", param, ctx)
        if number not in self.allowed:
            self.fail(f"{str(value)[:40]} is not {self.allowed}.", param, ctx)
        return number


class TokenBias(click.ParamType[tuple[int, float]]):
    """`ID=BIAS`: what is added to the logit of a token."""

    name = "ID=BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """The pair; a usage error where it is none or the bias is out of range."""
        if isinstance(value, tuple):
            return value
        token, _, bias = str(value).partition("=")
        try:
            pair = int(token), float(bias)
        except ValueError:
            self.fail(f"{str(value)[:40]!r} is not ID=BIAS, such as 13=-5.", param, ctx)
        if pair[0] < 0 or pair[1] not in BIASES:
            self.fail(f"{str(value)[:40]!r} is not a token's id and a bias {BIASES}.", param, ctx)
        return pair


_OPTIONS: tuple[tuple[tuple[str, ...], str, float, str], ...] = (
    (("--temperature",), "temperature", 0.0, "0 is greedy, 1 the model's own distribution."),
    (("--top-k",), "top_k", 0, "Sample from the K likeliest tokens only."),
    (("--top-p",), "top_p", 1.0, "Nucleus sampling."),
    (("--min-p",), "min_p", 0.0, "Drop tokens below this share of the likeliest."),
    (
        ("--repetition-penalty", "--repeat-penalty"),
        "repetition_penalty",
        1.0,
        "Divide the logits of tokens seen before, prompt included.",
    ),
    (
        ("--presence-penalty",),
        "presence_penalty",
        0.0,
        "Lower the logits of tokens in the output, once.",
    ),
    (
        ("--frequency-penalty",),
        "frequency_penalty",
        0.0,
        "Lower them by this much per occurrence.",
    ),
    (("--seed",), "seed", 0, "Same seed, same text."),
)


def sampling_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb; it gets them as keyword arguments for `read_sampling`."""
    verb = click.option(
        "--logit-bias",
        multiple=True,
        type=TokenBias(),
        help=f"Add BIAS, {BIASES}, to the logit of token ID; may be given several times.",
    )(verb)
    for flags, name, default, text in reversed(_OPTIONS):
        allowed = RANGES[name]
        off = "" if name in ("temperature", "seed") else ", off"
        limits = "" if allowed.of_integers else f"; {allowed}"
        described = f"{text}  [default: {default:g}{off}{limits}]"
        verb = click.option(*flags, name, type=Within(allowed), default=default, help=described)(verb)
    return verb


def read_sampling(chosen: dict[str, Any]) -> "SamplingParameters":
    """The verb's keyword arguments as SamplingParameters."""
    from anespec.runtime.sampling import SamplingParameters

    numbers = {name: chosen[name] for name in RANGES if name in chosen}
    return SamplingParameters(**numbers, logit_bias=tuple(dict(chosen["logit_bias"]).items()))
