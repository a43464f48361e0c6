"""What is worth trying of a model on a target."""

from collections.abc import Sequence

from anespec.convert.plan import ConversionPlan
from anespec.convert.shard_limits import HEAD_CHANNELS
from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.errors import RequestError
from anespec.manifests.ranges import RangeDefault, ReshapeHint
from anespec.manifests.schema import AttentionShape, KVForm, Shapes, Target
from anespec.manifests.weight_choice import WeightChoice
from anespec.validate.tuning.candidates import Space

BLOCKS = (4, 2, 8, 16)
PREFILL_BLOCKS = (64, 32, 128)
SHARD_BYTES = (
    250_000_000,
    500_000_000,
    1_000_000_000,
    1_500_000_000,
    2_000_000_000,
)
"""From far below what is disputed to the largest that was seen resident (convert.shard_limits)."""


def default_space(plan: ConversionPlan, weights: Sequence[str]) -> Space:
    """Every choice's values, the defaults of the target first; shard sizes that change nothing are left out.

    Raises:
        RequestError: `weights` is empty, or names a format that there is not.
    """
    if not weights:
        raise RequestError("there is no weight format to try; give --weights one, or leave it out")
    attention = [plan.attention, *(shape for shape in AttentionShape if shape is not plan.attention)]
    layout = plan.passes.functions[0].layout
    vocabulary = plan.model.facts.vocabulary
    # A processor's library knows neither default shapes nor hints.
    on_engine = plan.options.target is not Target.CPU
    planned, slices = len(plan.topology.heads), -(-vocabulary // HEAD_CHANNELS)
    return Space(
        weights=[str(WeightChoice.parse(text)) for text in weights],
        kv_form=[plan.kv_form, *(form for form in KVForm if form is not plan.kv_form)],
        attention=attention,
        shapes=list(Shapes),
        layout=[layout, *(other for other in ChannelLayout if other is not layout)],
        block=[size for size in BLOCKS if size <= plan.context],
        prefill_block=[size for size in PREFILL_BLOCKS if size <= plan.context] or [plan.context],
        shard_bytes=_useful(SHARD_BYTES, plan),
        head_shards=list(dict.fromkeys((planned, min(2 * planned, vocabulary), max(planned, slices)))),
        range_default=list(RangeDefault) if on_engine else [RangeDefault.ONE],
        reshape_hint=list(ReshapeHint) if on_engine else [ReshapeHint.NONE],
    )


def _useful(sizes: Sequence[int], plan: ConversionPlan) -> list[int]:
    """Sizes up to the first that holds all layers."""
    total = sum(plan.layer_bytes(layer) for layer in plan.model.facts.layers)
    return [size for number, size in enumerate(sizes) if not number or sizes[number - 1] < total]
