"""What K/V cost a pass, by form and context: the bytes that its graph writes, and all that it touches.

Counted from the graph; nothing of it is measured. A blend reads every slot and makes every slot anew; then
attention reads them all. What a compiler keeps on its chip in between is unknown, and so is whether it
updates a state in place, which these numbers take for granted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.facts import LayerFacts
from anespec.manifests.schema import KVForm, aligned, spare_slots

BYTES = 2
"""Of an fp16 number."""

LEAST_CONTEXT = 256
"""Shorter contexts are of no use to anybody."""


@dataclass(frozen=True)
class KVTraffic:
    """K and V of all layers in a decoding pass of one form at one context, in bytes.

    `written` reach a state, or the host's cache. `touched` are all that the pass reads or writes of K/V, and
    of blends as large as them; `share` is their part of these and the weights.
    """

    form: KVForm
    context: int
    written: int
    touched: int
    share: float


def kv_traffic(plan: ConversionPlan, context: int | None = None) -> tuple[KVTraffic, ...]:
    """Every form, in the order of KVForm, at the plan's context or another."""
    return tuple(_of(plan, form, plan.context if context is None else context) for form in KVForm)


def contexts_beside(plan: ConversionPlan) -> Sequence[int]:
    """The plan's context, and shorter ones that a person may choose in its place; longest first."""
    shorter = (aligned(plan.context // part) for part in (2, 4))
    return (plan.context, *(each for each in shorter if LEAST_CONTEXT <= each < plan.context))


def _of(plan: ConversionPlan, form: KVForm, context: int) -> KVTraffic:
    whole, new, read = 0, 0, 0
    for layer in plan.model.facts.layers:
        slot = 2 * BYTES * layer.kv_heads * layer.head_dim
        slots = _slots(plan, layer, form, context)
        read += slot * slots
        if layer.owns_kv:
            whole += slot * slots
            new += slot * plan.options.block
    match form:
        case KVForm.AT_POSITION:
            written, touched = new, new + read
        case KVForm.OUTSIDE:
            written, touched = new, new + 2 * whole + read
        case _:
            written, touched = whole, 2 * whole + read
    return KVTraffic(form, context, written, touched, touched / (touched + plan.weight_bytes()))


def _slots(plan: ConversionPlan, layer: LayerFacts, form: KVForm, context: int) -> int:
    """The slots of a layer's K and V in all sequences."""
    widest = plan.passes.t_max
    of_tokens = context if layer.window is None else min(context, aligned(layer.window + widest))
    return (of_tokens + spare_slots(form, widest)) * plan.options.sequences
