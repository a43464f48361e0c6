"""The candidates: values of each option that change the speed of a model, but not its output."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TypeVar

from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.planning.shard_limits import HEAD_CHANNELS
from anespec.manifests.channel_layout import DECLARED, ChannelLayout
from anespec.manifests.graph_choices import ChunkSolve, RangeDefault, ReshapeHint
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

    A layer shard is filled up to `shard_bytes`. `prefill_block` is set only for packages of several
    functions, which have passes wider than the block. `range_default` and `reshape_hint` are set only for
    ranges, `chunk` only for recurrent layers, and `chunk_solve` only for gated delta nets.
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
    chunk: Count | None = None
    chunk_solve: ChunkSolve | None = None

    def __str__(self) -> str:
        prefill = f"+{self.prefill_block}" if self.prefill_block is not None else ""
        default = ", the block by default" if self.range_default is RangeDefault.BLOCK else ""
        hinted = self.reshape_hint not in (None, ReshapeHint.NONE)
        hint = f", hint {self.reshape_hint}" if hinted else ""
        solve = "" if self.chunk_solve is None else f" solved by {self.chunk_solve}"
        chunks = "" if self.chunk is None else f", chunks of {self.chunk}{solve}"
        best = ", which finds the best tokens" if self.head_outputs is HeadOutputs.ARGMAX else ""
        return (
            f"{self.weights}, {self.kv_form}, {self.attention}, {self.layout}, "
            f"{self.shapes} of {self.block}{prefill} rows{default}{hint}{chunks}, "
            f"shards up to {self.shard_bytes / 1e6:.0f} MB, {self.head_shards} for the head{best}"
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the rows of its passes: for decoding, and for reading a prompt."""
        return tuple(dict.fromkeys((self.block, self.prefill_block or self.block)))


SEARCHED = tuple(Candidate.model_fields)
"""The options that are searched, each a field of a conversion's options and of TunedChoices."""


DEPENDENT: Mapping[str, Shapes] = MappingProxyType(
    {
        "prefill_block": Shapes.FUNCTIONS,
        "range_default": Shapes.RANGE,
        "reshape_hint": Shapes.RANGE,
    }
)
"""Options that apply to only one kind of shapes."""


@dataclass(frozen=True)
class Space:
    """The values of each option. The first ones are the defaults, which only faster values replace (see
    ranking)."""

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
    chunk: Sequence[int | None] = (None,)
    chunk_solve: Sequence[ChunkSolve | None] = (None,)

    @property
    def start(self) -> Candidate:
        """Return the candidate with all defaults."""
        return next(iter(self.around(None, ())))

    def around(self, centre: Candidate | None, choices: Iterable[str]) -> Iterator[Candidate]:
        """Yield candidates with every combination of values of some options, and the others as in `centre`.

        No candidate is yielded twice.
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
    chunk=(32, 16, 8, 64),
    chunk_solve=tuple(ChunkSolve),
)
"""The one table of options, with the best known value first, for `anespec tune` and for the self-test.

Weight formats are in the order of the quality that they keep. K/V forms and shapes begin with what another
project measured resident, and a cache in the graph comes before one that the host keeps. Sizes of shards go
from far below any disputed size to the largest that was seen resident (convert.shard_limits).
"""


Value = TypeVar("Value")


def default_space(plan: ConversionPlan, weights: Sequence[str]) -> Space:
    """Return the values of the table that apply to a plan, with the plan's own first.

    Shard sizes that change nothing are left out.

    Raises:
        RequestError: `weights` is empty, or names an unknown format.
    """
    if not weights:
        raise RequestError("there is no weight format to try; give --weights a format, or leave it out")
    vocabulary = plan.model.facts.vocabulary
    # A processor's library has neither default shapes nor hints, and its logits come from no other device.
    on_engine = plan.options.target is not Target.CPU
    chunks = plan.chunks
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
        chunk=(None,) if chunks is None else _beginning(chunks.positions, KNOWN.chunk),
        chunk_solve=_beginning(chunks.solve, KNOWN.chunk_solve) if chunks and chunks.solve else (None,),
    )


def _beginning(first: Value, known: Sequence[Value]) -> list[Value]:
    return [first, *(value for value in known if value != first)]


def _useful(sizes: Sequence[int], plan: ConversionPlan) -> list[int]:
    """Return the sizes up to the first that holds all layers."""
    total = sum(plan.layer_bytes(layer) for layer in plan.model.facts.layers)
    return [size for number, size in enumerate(sizes) if not number or sizes[number - 1] < total]
