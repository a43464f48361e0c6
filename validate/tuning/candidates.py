"""The candidates: one value of each option that changes the speed of a model, but not its output."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TypeVar

from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.planning.shard_limits import HEAD_CHANNELS
from anespec.manifests.channel_layout import DECLARED, ChannelLayout
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint
from anespec.manifests.schema import (
    AttentionShape,
    Count,
    HeadOutputs,
    KVForm,
    Record,
    Shapes,
    Target,
    WeightFormat,
)
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import RequestError


class Candidate(Record):
    """One way to convert a model.

    `shard_bytes` is what a layer shard is filled up to. `prefill_block` is None but for packages of several
    functions, which alone have a pass of another width than the block's; `range_default` and `reshape_hint`
    are None but for ranges.
    """

    weights: str
    kv_form: KVForm
    attention: AttentionShape
    shapes: Shapes
    layout: ChannelLayout = DECLARED
    block: Count
    prefill_block: Count | None = None
    range_default: RangeDefault | None = None
    reshape_hint: ReshapeHint | None = None
    shard_bytes: Count
    head_shards: Count
    head_outputs: HeadOutputs = HeadOutputs.LOGITS

    def __str__(self) -> str:
        prefill = f"+{self.prefill_block}" if self.prefill_block is not None else ""
        default = ", the block by default" if self.range_default is RangeDefault.BLOCK else ""
        hinted = self.reshape_hint not in (None, ReshapeHint.NONE)
        hint = f", hint {self.reshape_hint}" if hinted else ""
        best = ", which finds the best tokens" if self.head_outputs is HeadOutputs.ARGMAX else ""
        return (
            f"{self.weights}, {self.kv_form}, {self.attention}, {self.layout}, "
            f"{self.shapes} of {self.block}{prefill} rows{default}{hint}, "
            f"shards up to {self.shard_bytes / 1e6:.0f} MB, {self.head_shards} for the head{best}"
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """The rows of its passes: those that decode, and those that take in a prompt."""
        return tuple(dict.fromkeys((self.block, self.prefill_block or self.block)))


SEARCHED = tuple(Candidate.model_fields)
"""The choices that are searched, each an option of a conversion and a field of TunedChoices."""


DEPENDENT: Mapping[str, Shapes] = MappingProxyType(
    {
        "prefill_block": Shapes.FUNCTIONS,
        "range_default": Shapes.RANGE,
        "reshape_hint": Shapes.RANGE,
    }
)
"""Choices of one kind of shapes alone."""


@dataclass(frozen=True)
class Space:
    """The values of each choice. The first ones are the defaults: what is as fast does not replace them
    (see ranking)."""

    weights: Sequence[str]
    kv_form: Sequence[KVForm]
    attention: Sequence[AttentionShape]
    shapes: Sequence[Shapes]
    layout: Sequence[ChannelLayout]
    block: Sequence[int]
    prefill_block: Sequence[int]
    shard_bytes: Sequence[int]
    head_shards: Sequence[int]
    range_default: Sequence[RangeDefault] = (RangeDefault.ONE,)
    reshape_hint: Sequence[ReshapeHint] = (ReshapeHint.NONE,)
    head_outputs: Sequence[HeadOutputs] = (HeadOutputs.LOGITS,)

    @property
    def start(self) -> Candidate:
        """The first of everything."""
        return next(iter(self.around(None, ())))

    def around(self, centre: Candidate | None, choices: Iterable[str]) -> Iterator[Candidate]:
        """Candidates with every combination of values of some choices, the others as `centre` has them.

        What two combinations have in common comes once.
        """
        varied = frozenset(choices)
        values = [
            getattr(self, name) if centre is None or name in varied else (getattr(centre, name),)
            for name in SEARCHED
        ]
        seen = set[Candidate]()
        for combination in product(*values):
            chosen = dict(zip(SEARCHED, combination, strict=True))
            for name, shapes in DEPENDENT.items():
                if chosen["shapes"] is not shapes:
                    chosen[name] = None
                elif chosen[name] is None:
                    chosen[name] = getattr(self, name)[0]
            candidate = Candidate(**chosen)
            if candidate not in seen:
                seen.add(candidate)
                yield candidate


KNOWN = Space(
    weights=(
        WeightFormat.INT8_CHANNEL,
        WeightFormat.LUT8,
        WeightFormat.LUT6,
        WeightFormat.FP16,
        WeightFormat.LUT4,
    ),
    kv_form=(
        KVForm.SLICE_UPDATE,
        KVForm.BLENDED,
        KVForm.REREAD,
        KVForm.PACKED,
        KVForm.AT_POSITION,
        KVForm.OUTSIDE,
    ),
    attention=tuple(AttentionShape),
    shapes=(Shapes.RANGE, Shapes.STATIC, Shapes.FUNCTIONS),
    layout=tuple(ChannelLayout),
    block=(4, 2, 8, 16),
    prefill_block=(64, 32, 128),
    shard_bytes=(250_000_000, 500_000_000, 1_000_000_000, 1_500_000_000, 2_000_000_000),
    head_shards=(1,),
    range_default=tuple(RangeDefault),
    reshape_hint=tuple(ReshapeHint),
    head_outputs=tuple(HeadOutputs),
)
"""The one table of choices, the best known value first, for `anespec tune` and for the self-test.

Weight formats stand in the order of the quality that they keep; K/V forms and shapes begin with what another
project measured resident, and the cache in the graph comes before one that the host keeps. Sizes of shards go
from far below what is disputed to the largest that was seen resident (convert.shard_limits).
"""


# What is worth trying of a model on a target.

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
    # A processor's library knows neither default shapes nor hints, and its logits are near.
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
        head_outputs=KNOWN.head_outputs if on_engine else (HeadOutputs.LOGITS,),
    )


def _beginning(first: Value, known: Sequence[Value]) -> list[Value]:
    return [first, *(value for value in known if value != first)]


def _useful(sizes: Sequence[int], plan: ConversionPlan) -> list[int]:
    """Sizes up to the first that holds all layers."""
    total = sum(plan.layer_bytes(layer) for layer in plan.model.facts.layers)
    return [size for number, size in enumerate(sizes) if not number or sizes[number - 1] < total]
