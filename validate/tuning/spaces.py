"""What is worth trying of a model on a target."""

from collections.abc import Sequence
from typing import TypeVar

from anespec.convert.plan import ConversionPlan
from anespec.convert.shard_limits import HEAD_CHANNELS
from anespec.manifests.errors import RequestError
from anespec.manifests.ranges import RangeDefault, ReshapeHint
from anespec.manifests.schema import Target
from anespec.manifests.weight_choice import WeightChoice
from anespec.validate.tuning.candidates import KNOWN, Space

Value = TypeVar("Value")


def default_space(plan: ConversionPlan, weights: Sequence[str]) -> Space:
    """Return the values of the table of choices that apply, the plan's own first; shard sizes that change
    nothing are left out.

    Raises:
        RequestError: `weights` is empty, or names a format that there is not.
    """
    if not weights:
        raise RequestError("there is no weight format to try; give --weights one, or leave it out")
    vocabulary = plan.model.facts.vocabulary
    # A processor's library knows neither default shapes nor hints.
    on_engine = plan.options.target is not Target.CPU
    planned, slices = len(plan.topology.heads), -(-vocabulary // HEAD_CHANNELS)
    return Space(
        weights=[str(WeightChoice.parse(text)) for text in weights],
        kv_form=_beginning(plan.kv_form, KNOWN.kv_form),
        attention=_beginning(plan.attention, KNOWN.attention),
        shapes=KNOWN.shapes,
        layout=_beginning(plan.passes.functions[0].layout, KNOWN.layout),
        block=[size for size in KNOWN.block if size <= plan.context],
        prefill_block=[size for size in KNOWN.prefill_block if size <= plan.context] or [plan.context],
        shard_bytes=_useful(KNOWN.shard_bytes, plan),
        head_shards=list(dict.fromkeys((planned, min(2 * planned, vocabulary), max(planned, slices)))),
        range_default=KNOWN.range_default if on_engine else (RangeDefault.ONE,),
        reshape_hint=KNOWN.reshape_hint if on_engine else (ReshapeHint.NONE,),
    )


def _beginning(first: Value, known: Sequence[Value]) -> list[Value]:
    return [first, *(value for value in known if value != first)]


def _useful(sizes: Sequence[int], plan: ConversionPlan) -> list[int]:
    """Sizes up to the first that holds all layers."""
    total = sum(plan.layer_bytes(layer) for layer in plan.model.facts.layers)
    return [size for number, size in enumerate(sizes) if not number or sizes[number - 1] < total]
