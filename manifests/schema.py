"""`manifest.json` as pydantic models: what an artifact holds and what its passes take.

Everything that a runtime in another language needs to run the shards stands here; export the JSON
schema with `Manifest.model_json_schema()`.
"""

import math
from typing import Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from anespec.manifests.channel_layout import CHANNELS_AXIS, DECLARED, ChannelLayout, channel_shape
from anespec.manifests.fields import BASE_ALIGNMENT as BASE_ALIGNMENT
from anespec.manifests.fields import LARGEST_FACTOR as LARGEST_FACTOR
from anespec.manifests.fields import LARGEST_FREQUENCY as LARGEST_FREQUENCY
from anespec.manifests.fields import LARGEST_INTEGER as LARGEST_INTEGER
from anespec.manifests.fields import MAX_BLOCK as MAX_BLOCK
from anespec.manifests.fields import MOST_LAYERS as MOST_LAYERS
from anespec.manifests.fields import MOST_ROWS as MOST_ROWS
from anespec.manifests.fields import MOST_SLOTS as MOST_SLOTS
from anespec.manifests.fields import MOST_TOKENS as MOST_TOKENS
from anespec.manifests.fields import WIDEST as WIDEST
from anespec.manifests.fields import Bytes as Bytes
from anespec.manifests.fields import Channels as Channels
from anespec.manifests.fields import Count as Count
from anespec.manifests.fields import Factor as Factor
from anespec.manifests.fields import Frequency as Frequency
from anespec.manifests.fields import Index as Index
from anespec.manifests.fields import InsidePath as InsidePath
from anespec.manifests.fields import Name as Name
from anespec.manifests.fields import Record as Record
from anespec.manifests.fields import Slots as Slots
from anespec.manifests.fields import StoredTensor as StoredTensor
from anespec.manifests.fields import Target as Target
from anespec.manifests.fields import WeightFormat as WeightFormat
from anespec.manifests.fields import formats_of as formats_of
from anespec.manifests.fields import relative_error as relative_error
from anespec.manifests.graph_choices import AttentionShape as AttentionShape
from anespec.manifests.graph_choices import HeadOutputs as HeadOutputs
from anespec.manifests.graph_choices import KVForm as KVForm
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint, range_widths
from anespec.manifests.graph_choices import Shapes as Shapes

SCHEMA_VERSION = 3

HIDDEN_IN = "x"
HIDDEN_OUT = "hidden"
EMBEDDED = "embedded"
"""A layer shard's hidden state, in and out; head shards take it too. `embedded` is
the first layer's hidden state in, which layers with embeddings of their own take beside it."""

MAIN = "main"
"""The one function of a shard that has no others."""

BEST = "best"
"""The output of a head's functions that find the best tokens (see BestHead)."""

BEST_PREFIX = f"{BEST}_"
"""Before a head function's name: the one that finds the best tokens, of the same rows and layout."""


class SourceFile(Record):
    """The GGUF that the artifact was made from; `read_from` is where it lay then, a hint for validate."""

    name: str
    read_from: str
    bytes: Bytes
    sha256: str
    architecture: str
    quantisation: str


class Hyperparameters(Record):
    """Sizes of the model. `d` is the width of the hidden state."""

    d: Channels
    layers: int = Field(gt=0, le=MOST_LAYERS)
    heads: Channels
    kv_heads: Channels
    head_dim: Channels
    ff: Channels
    vocabulary: int = Field(gt=0, le=MOST_TOKENS)
    norm_epsilon: float = Field(gt=0, lt=1)
    trained_context: Count


class RopeTable(Record):
    """Rope angles of one base: row p is cos/sin of `p * frequencies`, times `magnitude`, in fp16.

    `frequencies` has rotary_dim / 2 entries, scaling and factors already applied. The table of queries
    whose scores grow with the position is multiplied by 1 + temperature * ln(1 + floor(p / step)) too.
    `cos_input` and `sin_input` name the shard inputs that take the rows.
    """

    cos_input: Name
    sin_input: Name
    frequencies: tuple[Frequency, ...] = Field(min_length=1, max_length=WIDEST)
    magnitude: Factor = 1.0
    temperature: float = 0.0
    temperature_step: Slots = 1


class KVCacheGroup(Record):
    """Layers that share one slot map. `region_slots` is the length of one sequence's region.

    A `window` of None means that every earlier position is visible.
    `mask_input` names the shard input that takes this pool's attention mask, `write_input` the one that says
    which slots a pass writes: see `write_spec`.
    """

    name: Name
    slots: Slots
    region_slots: Slots
    window: Count | None = None
    mask_input: Name
    write_input: Name

    def write_spec(self, form: KVForm) -> "TensorSpec":
        """The shard input that says which slots a pass writes.

        A mask [1, 1, S, T], column t one-hot at row t's slot or zero; for AT_POSITION the slots themselves
        [T], each one more than the one before it.
        """
        if form is KVForm.AT_POSITION:
            return TensorSpec(name=self.write_input, shape=(None,), dtype="int32")
        return TensorSpec(name=self.write_input, shape=(1, 1, self.slots, None))


def spare_slots(form: KVForm, t_max: int) -> int:
    """Slots at the end of every region that hold no token.

    AT_POSITION writes all rows of a pass side by side, pads behind the last token too. Theirs fall into these
    slots where a region, or a ring, has no other behind that token.
    """
    return aligned(t_max - 1) if form is KVForm.AT_POSITION else 0


def aligned(slots: int) -> int:
    """`slots` rounded up, so that every region's base is aligned."""
    return -(-slots // BASE_ALIGNMENT) * BASE_ALIGNMENT


class ShardFunction(Record):
    """A function that every shard has, and the T it takes; a T of None is any of t_min..t_max.

    `layout` is that of its channel tensors: what a manifest declares as [1, C, T, 1], a function of the
    layout rows_last takes and returns as [1, C, 1, T].
    """

    name: Name
    rows: Count | None = None
    layout: ChannelLayout = DECLARED


class TensorSpec(Record):
    """A shard's input or output. A None dimension is T; a function has channel tensors in its own layout."""

    name: Name
    shape: tuple[Count | None, ...]
    dtype: Literal["fp16", "int32"] = "fp16"


NEW_ROWS = "new_"
"""Before a state's name: the output that has a pass's rows of it, where the host holds the state."""


class StateSpec(Record):
    """K or V of some layers: fp16 [n, n_kv, S, head_dim] in the named pool.

    Entry e of the first axis is of `layers[e]`; where a layer stands there twice, its K comes before its V.
    A state that the graph holds is a state of the shard's program. One that the host holds is an input of
    that name and shape, which the shard only reads; the output NEW_ROWS + name, [n, n_kv, T, head_dim], has
    the pass's rows, and the host puts row t into its home slot once the pass is over. Neither stands among
    the shard's `inputs` and `outputs`.

    `kind` says what a state holds. There are keys and values per position alone so far; a state that a
    sequence carries along as a whole will be of another kind, which a reader that lacks it must refuse.
    """

    kind: Literal["kv"] = "kv"
    name: Name
    shape: tuple[Count, Count, Count, Count]
    pool: Name
    layers: tuple[Index, ...] = Field(min_length=1)
    held: Literal["graph", "host"] = "graph"

    @property
    def new_rows(self) -> str:
        """The output that has a pass's rows, where the host holds the state."""
        return NEW_ROWS + self.name

    @property
    def bytes(self) -> int:
        """Bytes of its numbers, two each."""
        return 2 * math.prod(self.shape)


class Shard(Record):
    """One .mlpackage; `path` is relative to the artifact. `sha256` is over its files (see store)."""

    path: InsidePath
    bytes: Bytes
    sha256: str
    recipe: str = Field(description="hash of all that the shard was built from")
    tensors: tuple[StoredTensor, ...] = Field(min_length=1, description="the projections, as stored")
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def program_inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the program."""
        return self.inputs

    @property
    def program_outputs(self) -> tuple[TensorSpec, ...]:
        """All outputs of the program."""
        return self.outputs

    @property
    def program_states(self) -> tuple[StateSpec, ...]:
        """All states of the program."""
        return ()

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """The weight formats that the shard uses, most precise first."""
        return formats_of(self.tensors)


class LayerShard(Shard):
    """Layers first_layer to end_layer - 1.

    `per_layer_input` names the input that takes these layers' part of the per-layer embeddings.
    """

    first_layer: Index
    end_layer: Count
    states: tuple[StateSpec, ...] = Field(min_length=1)
    per_layer_input: Name | None = None

    @property
    def hosted(self) -> tuple[StateSpec, ...]:
        """The states that the host holds: inputs of the program, each with an output of its new rows."""
        return tuple(state for state in self.states if state.held == "host")

    @property
    def program_inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the program."""
        caches = (TensorSpec(name=state.name, shape=state.shape) for state in self.hosted)
        return (*self.inputs, *caches)

    @property
    def program_outputs(self) -> tuple[TensorSpec, ...]:
        """All outputs of the program."""
        rows = ((state.new_rows, state.shape) for state in self.hosted)
        return (
            *self.outputs,
            *(TensorSpec(name=name, shape=(n, heads, None, size)) for name, (n, heads, _, size) in rows),
        )

    @property
    def program_states(self) -> tuple[StateSpec, ...]:
        """All states of the program: those that the graph holds."""
        return tuple(state for state in self.states if state.held == "graph")

    @property
    def state_bytes(self) -> int:
        """What the K and V states of its layers take."""
        return sum(state.bytes for state in self.states)


class HeadShard(Shard):
    """The final norm and rows first_token to end_token - 1 of the output projection."""

    first_token: Index
    end_token: Count

    @property
    def slices(self) -> tuple[int, ...]:
        """The tokens of each slice, in the vocabulary's order."""
        return tuple(spec.shape[CHANNELS_AXIS] or 0 for spec in self.outputs)

    @property
    def best(self) -> "BestHead":
        """The shard as its functions that find the best tokens are seen."""
        return BestHead(
            **{
                **dict(self),
                "outputs": (TensorSpec(name=BEST, shape=channel_shape(BEST_CHANNELS * len(self.outputs))),),
            },
            slice_tokens=self.slices,
        )


BEST_CHANNELS = 4
"""Channels that say the best token of a slice: its logit, the two digits of its number in the slice, and
whether all logits of the slice are finite (1) or not (0)."""

BEST_FIRST, BEST_DIGIT = 2048, 128
"""The number is (BEST_FIRST - first) x BEST_DIGIT + BEST_DIGIT - second; fp16 has both digits exactly."""


class BestHead(HeadShard):
    """A head shard through its functions that find the best token of each slice: not a shard more.

    Their one output is BEST, with BEST_CHANNELS channels for each slice, one slice after the other. Of equal
    logits the lowest token's is the best.
    """

    slice_tokens: tuple[Count, ...]

    @property
    def slices(self) -> tuple[int, ...]:
        """The tokens of each slice, in the vocabulary's order."""
        return self.slice_tokens


class PerLayerEmbedding(Record):
    """A second embedding table, whose rows hold `width` numbers for every layer, one layer after the other.

    A layer shard takes the part of its layers, times `scale`, as [1, layers x width, T, 1], and the
    first hidden state under the name EMBEDDED.
    """

    tensor: Name
    width: Channels
    scale: Factor


class TokensFile(Record):
    """tokens.gguf: vocabulary, chat template and embedding table."""

    path: InsidePath
    bytes: Bytes
    sha256: str
    embedding_tensor: Name
    embedding_scale: Factor = Field(
        default=1.0, description="of the first hidden state; hidden_scale is part of it"
    )
    per_layer: PerLayerEmbedding | None = None


class Manifest(Record):
    """manifest.json."""

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True, ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    source: SourceFile
    hyperparameters: Hyperparameters
    target: Target
    attention: AttentionShape
    kv_form: KVForm
    block: int = Field(gt=0, le=MOST_ROWS, description="T of a decoding pass")
    t_min: int = Field(gt=0, le=MOST_ROWS, default=1, description="narrowest pass the shards accept")
    t_max: int = Field(gt=0, le=MOST_ROWS, description="widest pass the shards accept")
    shapes: Shapes = Shapes.RANGE
    functions: tuple[ShardFunction, ...] = Field(
        default=(ShardFunction(name=MAIN),),
        min_length=1,
        description="those of every layer shard, the default function, which runs the block, first",
    )
    head_functions: tuple[ShardFunction, ...] | None = Field(
        default=None, min_length=1, description="those of every head shard; null: the layer shards'"
    )
    head_outputs: HeadOutputs = Field(
        default=HeadOutputs.LOGITS,
        description="argmax: head shards have a second function beside each, BEST_PREFIX + name, that finds "
        "the best token of each slice; left out where it is logits",
    )
    range_default: RangeDefault = Field(
        default=RangeDefault.BLOCK, description="T of the packages' default shape, where shapes are a range"
    )
    reshape_hint: ReshapeHint = Field(
        default=ReshapeHint.INFREQUENT, description="the hint that Core ML gets when it loads a shard"
    )
    context: Slots = Field(description="slots of one sequence")
    sequences: Slots = Field(description="regions")
    pools: tuple[KVCacheGroup, ...] = Field(min_length=1)
    ropes: tuple[RopeTable, ...]
    hidden_scale: Factor = Field(
        default=1.0, gt=0, description="the hidden state between shards is the model's own times this"
    )
    layer_shards: tuple[LayerShard, ...] = Field(min_length=1)
    head_shards: tuple[HeadShard, ...] = Field(min_length=1)
    tokens: TokensFile
    built_with: dict[str, str]

    @model_validator(mode="after")
    def _consistent(self) -> "Manifest":
        # Imported here, since its rules are about this module's models.
        from anespec.manifests.consistency import contradictions

        if (first := next(contradictions(self), None)) is not None:
            raise ValueError(first)
        return self

    @model_serializer(mode="wrap")
    def _without_the_usual_head(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the outputs of usual heads: their fingerprints are from before there were others."""
        facts: dict[str, Any] = handler(self)
        if self.head_outputs is HeadOutputs.LOGITS:
            facts.pop("head_outputs", None)
        return facts

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards: layers first, then heads."""
        return (*self.layer_shards, *self.head_shards)

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """All projections, as stored."""
        return tuple(tensor for shard in self.shards for tensor in shard.tensors)

    @property
    def state_bytes(self) -> int:
        """What all K and V states take."""
        return sum(shard.state_bytes for shard in self.layer_shards)

    @property
    def topology(self) -> tuple[int, ...]:
        """Layers per shard, e.g. (20, 4, 6, 2)."""
        return tuple(s.end_layer - s.first_layer for s in self.layer_shards)

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of rows that a pass may have, ascending, the block among them."""
        if self.shapes is Shapes.RANGE:
            return range_widths(self.block, self.t_min, self.t_max, few=self.target is not Target.CPU)
        return tuple(sorted(function.rows for function in self.functions if function.rows is not None))

    @property
    def default_rows(self) -> int:
        """T of a package's default shape, of which Core ML's plans are."""
        is_one = self.shapes is Shapes.RANGE and self.range_default is RangeDefault.ONE
        return self.t_min if is_one else self.block

    def functions_of(self, shard: Shard) -> tuple[ShardFunction, ...]:
        """The functions of a shard, the default one first; of a BestHead those that find the best tokens."""
        functions = (self.head_functions if isinstance(shard, HeadShard) else None) or self.functions
        if isinstance(shard, BestHead):
            return tuple(each.model_copy(update={"name": BEST_PREFIX + each.name}) for each in functions)
        return functions

    def ways_through(self, shard: Shard) -> tuple[Shard, ...]:
        """The shard, and behind it the BestHead of one that finds the best tokens too."""
        if self.head_outputs is HeadOutputs.LOGITS or isinstance(shard, BestHead):
            return (shard,)
        return (shard, shard.best) if isinstance(shard, HeadShard) else (shard,)

    def package_functions(self, shard: Shard) -> tuple[ShardFunction, ...]:
        """All functions of a shard's package, the default one first."""
        return tuple(each for way in self.ways_through(shard) for each in self.functions_of(way))

    @property
    def best_heads(self) -> tuple[BestHead, ...]:
        """The head shards as they find the best tokens; none where they do not."""
        ways = (way for shard in self.head_shards for way in self.ways_through(shard))
        return tuple(way for way in ways if isinstance(way, BestHead))

    def widths_of(self, shard: Shard) -> tuple[int, ...]:
        """The numbers of rows that passes through a shard may have, ascending, the block among them."""
        return tuple(width for width in self.widths if self.function_of(shard, width) is not None)

    @property
    def head_widths(self) -> tuple[int, ...]:
        """The numbers of rows that the heads may run on, ascending."""
        return self.widths_of(self.head_shards[0])

    def function_of(self, shard: Shard, rows: int) -> ShardFunction | None:
        """The function that runs passes of so many rows through a shard, if there is one."""
        if not self.t_min <= rows <= self.t_max:
            return None
        return next((each for each in self.functions_of(shard) if each.rows in (None, rows)), None)

    def loaded_name(self, shard: Shard, function: ShardFunction) -> str | None:
        """The name that a shard's function is loaded by; None where the shard has one alone."""
        has_others = isinstance(shard, BestHead) or len(self.package_functions(shard)) > 1
        return function.name if has_others else None

    @property
    def spare_slots(self) -> int:
        """Slots at the end of every region that hold no token (see `spare_slots`)."""
        return spare_slots(self.kv_form, self.t_max)

    def pool(self, name: str) -> KVCacheGroup:
        """The pool called `name`; raises KeyError if there is none."""
        return {pool.name: pool for pool in self.pools}[name]
