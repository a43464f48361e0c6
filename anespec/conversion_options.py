"""The options that `convert` and `inspect` share: what would be built."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from anespec.manifests.errors import RequestError
from anespec.manifests.presets import NO_PRESET, preset_names
from anespec.manifests.schema import MAX_BLOCK, AttentionShape, Target, WeightFormat
from anespec.manifests.weight_choice import GROUPS, KINDS, WeightChoice

if TYPE_CHECKING:
    from anespec.convert.plan import ConvertOptions


class LayerCounts(click.ParamType[tuple[int, ...]]):
    """`20,4,6,2` or `20+4+6+2`: layers per shard."""

    name = "N,N,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The counts; a usage error where they are not positive integers."""
        if isinstance(value, tuple):
            return value
        try:
            counts = tuple(int(part) for part in str(value).replace("+", ",").split(","))
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1:
            self.fail(f"{str(value)[:40]!r} is not a list of layer counts such as 20,4,6,2", param, ctx)
        return counts


class WeightFormats(click.ParamType[WeightChoice]):
    """`int8-channel,head=lut6`: a format for all weights, others for some kinds."""

    name = "FORMAT[,KIND=FORMAT…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WeightChoice:
        """The choice; a usage error that lists what there is where something is unknown."""
        if isinstance(value, WeightChoice):
            return value
        try:
            return WeightChoice.parse(str(value))
        except RequestError as error:
            self.fail(str(error), param, ctx)


WEIGHTS_HELP = (
    f"How weights are stored: {', '.join(WeightFormat)}; for some kinds of weight another way, as in "
    f"int8-channel,head=lut6. Kinds: {', '.join(KINDS)}; groups of them: {', '.join(GROUPS)}."
)


def conversion_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb; it gets them as keyword arguments for `read_options`."""
    options = (
        click.option(
            "--target",
            type=click.Choice([t.value for t in Target]),
            default=Target.MAC.value,
            show_default=True,
            help="What to build for: the Neural Engine of a Mac or an iPhone, or a processor with the "
            "portable backend.",
        ),
        click.option(
            "--block",
            type=click.IntRange(1, MAX_BLOCK),
            default=4,
            show_default=True,
            help="Rows of a decoding pass (T).",
        ),
        click.option(
            "--context", type=click.IntRange(1), help="Tokens per sequence, rounded up to 64.  [default: "
            "2048 (iphone: 1024), or what the model was trained for if that is less]",
        ),
        click.option(
            "--sequences",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="How many sequences the state holds at a time.",
        ),
        click.option(
            "--weights",
            type=WeightFormats(),
            default=str(WeightChoice()),
            show_default=True,
            help=WEIGHTS_HELP,
        ),
        click.option(
            "--attention",
            type=click.Choice([a.value for a in AttentionShape]),
            help="How attention is written.  [default: per_kv_head for mac and iphone, grouped for cpu]",
        ),
        click.option("--topology", type=LayerCounts(), help="Layers per shard, e.g. 20,4,6,2."),
        click.option("--head-shards", type=click.IntRange(1), help="Shards that the LM head is cut into."),
        click.option(
            "--preset",
            type=click.Choice([*preset_names(), NO_PRESET]),
            help="Take the topology measured for a model.  [default: the preset that fits, if there is one]",
        ),
    )  # fmt: skip
    for option in reversed(options):
        verb = option(verb)
    return verb


def read_options(chosen: dict[str, Any]) -> "ConvertOptions":
    """The verb's keyword arguments as ConvertOptions."""
    from anespec.convert.plan import ConvertOptions

    attention = chosen["attention"]
    return ConvertOptions(
        target=Target(chosen["target"]),
        block=chosen["block"],
        context=chosen["context"],
        sequences=chosen["sequences"],
        weights=chosen["weights"],
        attention=AttentionShape(attention) if attention else None,
        topology=chosen["topology"],
        head_shards=chosen["head_shards"],
        preset=chosen["preset"],
    )
