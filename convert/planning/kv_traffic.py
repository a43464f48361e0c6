"""Compute the memory traffic of K/V in a pass, by form and context: the bytes written, and all bytes touched.

The numbers are counted from the graph, not measured. A blend reads every slot and writes every slot; then
attention reads all of them. It is unknown which values a compiler keeps on the chip in between, and whether
it updates a state in place, which these numbers assume.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.convert.mixers.kept import PoolKind
from anespec.convert.planning.plan import ConversionPlan
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
    """Return the traffic of every form; a context of None is the plan's."""
    return tuple(_of(plan, form, plan.context if context is None else context) for form in KVForm)


def contexts_beside(plan: ConversionPlan) -> Sequence[int]:
    """Return the plan's context and shorter ones that the user may choose instead, longest first."""
    shorter = (aligned(plan.context // part) for part in (2, 4))
    return (plan.context, *(each for each in shorter if MIN_CONTEXT <= each < plan.context))


def _of(plan: ConversionPlan, form: KVForm, context: int) -> KVTraffic:
    written, touched = 0, 0
    for mixer in plan.model.facts.mixers:
        touched += FP16_BYTES * mixer.carried * plan.options.sequences
        for store in mixer.stores:
            slots = _slots(plan, store.pool, form, context)
            whole, new = FP16_BYTES * store.kept * slots, FP16_BYTES * store.kept * plan.options.block
            touched += FP16_BYTES * store.read * slots
            if form is KVForm.OUTSIDE:
                written, touched = written + new, touched + new + 2 * whole
            elif form is KVForm.AT_POSITION and store.pool.reads != "chunk":
                written, touched = written + new, touched + new
            else:
                written, touched = written + whole, touched + 2 * whole
    return KVTraffic(form, context, written, touched, touched / (touched + plan.weight_bytes()))


def _slots(plan: ConversionPlan, pool: PoolKind, form: KVForm, context: int) -> int:
    """Return the number of slots of a pool, in all sequences."""
    if pool.reads == "chunk":
        return 0 if plan.chunks is None else plan.chunks.positions * plan.options.sequences
    widest, window = plan.passes.t_max, pool.window
    of_tokens = context if window is None else min(context, aligned(window + widest))
    return (of_tokens + spare_slots(form, widest)) * plan.options.sequences
