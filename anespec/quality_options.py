"""The options of `validate` that score an artifact on a text."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from anespec.validate.quality.verdict import QualityTask

DEFAULT_TOKENS, MOST_TOKENS = 512, 1_000_000


class Percent(click.ParamType[float]):
    """`0.5` or `0.5%`: percent, not negative."""

    name = "P%"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number of percent; a usage error where it is none."""
        try:
            percent = float(str(value).removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not 0 <= percent < float("inf"):
            self.fail(f"{value!r} is not a percentage of 0 or more", param, ctx)
        return percent


class Nats(click.FloatRange):
    """A KL divergence: FloatRange alone lets NaN pass, which nothing is above."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error where it is none or out of range."""
        nats = float(super().convert(value, param, ctx))
        if math.isnan(nats):
            self.fail(f"{value!r} is not a number", param, ctx)
        return nats


def quality_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb; it gets them as keyword arguments for `read_quality`."""
    options = (
        click.option(
            "--quality",
            type=click.Path(path_type=Path),
            metavar="TEXT",
            help="Score this text file (UTF-8) too: the quality gate.",
        ),
        click.option(
            "--quality-tokens",
            type=click.IntRange(1, MOST_TOKENS),
            default=DEFAULT_TOKENS,
            show_default=True,
            help="How many tokens of it at most.",
        ),
        click.option(
            "--max-kl",
            type=Nats(0, 1000),
            help="Quality fails above this mean KL divergence, in nats.",
        ),
        click.option(
            "--max-perplexity-change",
            type=Percent(),
            help="Quality fails where the perplexity grew by more.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        verb = option(verb)
    return verb


def read_quality(chosen: dict[str, Any], gates: tuple[str, ...]) -> "QualityTask | None":
    """What to score, None where nothing is; `gates` are those that were named.

    Raises:
        click.UsageError: there is no text, though the gate or a limit is asked for.
    """
    text: Path | None = chosen["quality"]
    limits = (chosen["max_kl"], chosen["max_perplexity_change"])
    if text is None:
        if "quality" in gates or limits != (None, None):
            raise click.UsageError(
                "the quality gate, --max-kl and --max-perplexity-change need --quality TEXT."
            )
        return None

    from anespec.validate.quality.verdict import QualityTask

    return QualityTask(text, chosen["quality_tokens"], *limits)
