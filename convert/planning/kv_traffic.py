"""Compute the memory traffic of K/V in a pass, by form and context: the bytes written, and all bytes touched.

The numbers are counted from the graph, not measured. A blend reads every slot and writes every slot; then
attention reads all of them. It is unknown which values a compiler keeps on the chip in between, and whether
it updates a state in place, which these numbers assume.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.facts import LayerFacts
from anespec.manifests.schema import KVForm, aligned, spare_slots

FP16_BYTES = 2
"""The size of an fp16 number."""

MIN_CONTEXT = 256
"""The shortest context that is suggested."""


@dataclass(frozen=True)
class KVTraffic:
    """The traffic of all layers' K and V in a decoding pass, in bytes, for one form and context.

    `written` bytes go to a state, or to the host's cache. `touched` counts everything that the pass reads or
    writes of K/V, including blends of their size; `share` is its fraction of `touched` plus the weights.
    """

    form: KVForm
    context: int
    written: int
    touched: int
    share: float


def kv_traffic(plan: ConversionPlan, context: int | None = None) -> tuple[KVTraffic, ...]:
    """Return the traffic of every form, in the order of KVForm; a context of None is the plan's."""
    return tuple(_of(plan, form, plan.context if context is None else context) for form in KVForm)


def contexts_beside(plan: ConversionPlan) -> Sequence[int]:
    """Return the plan's context and shorter ones that the user may choose instead, longest first."""
    shorter = (aligned(plan.context // part) for part in (2, 4))
    return (plan.context, *(each for each in shorter if MIN_CONTEXT <= each < plan.context))


def _of(plan: ConversionPlan, form: KVForm, context: int) -> KVTraffic:
    whole, new, read = 0, 0, 0
    for layer in plan.model.facts.layers:
        slot = 2 * FP16_BYTES * layer.kv_heads * layer.head_dim
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
    """Return the number of slots of a layer's K and V in all sequences."""
    widest = plan.passes.t_max
    of_tokens = context if layer.window is None else min(context, aligned(layer.window + widest))
    return (of_tokens + spare_slots(form, widest)) * plan.options.sequences
