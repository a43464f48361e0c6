"""The schema of `manifest.json` as pydantic models: the parts of an artifact and the inputs of its passes.

It has everything that a runtime in another language needs to run the shards. `Manifest.model_json_schema()`
returns it as a JSON schema.
"""

from pydantic import Field, model_validator

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
from anespec.manifests.fields import PALETTES as PALETTES
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
from anespec.manifests.fields import RopeRows as RopeRows
from anespec.manifests.fields import Slots as Slots
from anespec.manifests.fields import StoredTensor as StoredTensor
from anespec.manifests.fields import Target as Target
from anespec.manifests.fields import WeightFormat as WeightFormat
from anespec.manifests.fields import formats_of as formats_of
from anespec.manifests.fields import relative_error as relative_error
from anespec.manifests.graph_choices import AttentionShape as AttentionShape
from anespec.manifests.graph_choices import ChunkSolve as ChunkSolve
from anespec.manifests.graph_choices import ExpertForm as ExpertForm
from anespec.manifests.graph_choices import HeadOutputs as HeadOutputs
from anespec.manifests.graph_choices import KVForm as KVForm
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint, range_widths
from anespec.manifests.graph_choices import Shapes as Shapes
from anespec.manifests.states import NARROWEST as NARROWEST
from anespec.manifests.states import NEW_ROWS as NEW_ROWS
from anespec.manifests.states import Fold as Fold
from anespec.manifests.states import KVCacheGroup as KVCacheGroup
from anespec.manifests.states import StateKind as StateKind
from anespec.manifests.states import StateSpec as StateSpec
from anespec.manifests.states import TensorSpec as TensorSpec
from anespec.manifests.states import aligned as aligned
from anespec.manifests.states import padded as padded
from anespec.manifests.states import spare_slots as spare_slots

SCHEMA_VERSION = 3

HIDDEN_IN = "x"
HIDDEN_OUT = "hidden"
EMBEDDED = "embedded"
"""The names of hidden states.

HIDDEN_IN is the input of layer shards and head shards, HIDDEN_OUT the output of layer shards. EMBEDDED is the
hidden state before the first layer, another input of layers with embeddings of their own.
"""

MAIN = "main"
"""The name of a shard's only function."""

BEST = "best"
"""The output of the head functions that find the best tokens (see BestHead)."""

BEST_PREFIX = f"{BEST}_"
"""The prefix to a head function's name that names the function which finds the best tokens, with the same T
and layout."""


class SourceFile(Record):
    """The GGUF from which the artifact was made; `read_from` was its path, with which `validate` finds it."""

    name: str
    read_from: str
    bytes: Bytes
    sha256: str
    architecture: str
    quantisation: str


class Hyperparameters(Record):
    """The sizes of the model. `d` is the hidden size, `ff` the intermediate size of the MLP, 0 without one.

    Without attention the heads are those of a recurrent layer.
    """

    d: Channels
    layers: int = Field(gt=0, le=MOST_LAYERS)
    heads: Channels
    kv_heads: Channels
    head_dim: Channels
    ff: int = Field(ge=0, le=WIDEST)
    vocabulary: int = Field(gt=0, le=MOST_TOKENS)
    norm_epsilon: float = Field(gt=0, lt=1)
    trained_context: Count


class RopeTable(Record):
    """A rope: row p is the cos or sin of `p * frequencies`, times `magnitude`, in fp16.

    `frequencies` has rotary_dim / 2 entries and includes scaling and factors. If scores grow with the
    position, the rows of the queries' table are also multiplied by 1 + temperature * ln(1 + floor(p / step)).
    `cos_input` and `sin_input` are the names of the shard inputs that take the rows.
    """

    cos_input: Name
    sin_input: Name
    frequencies: tuple[Frequency, ...] = Field(min_length=1, max_length=WIDEST)
    magnitude: Factor = 1.0
    temperature: float = 0.0
    temperature_step: Slots = 1


class ShardFunction(Record):
    """A function that every shard has. `rows` is its T, None for any of t_min..t_max.

    `layout` is that of its channel tensors: with rows_last, a tensor that the manifest declares as
    [1, C, T, 1] has the shape [1, C, 1, T].
    """

    name: Name
    rows: Count | None = None
    layout: ChannelLayout = DECLARED


class Shard(Record):
    """A shard, one .mlpackage; `path` is relative to the artifact. `sha256` is over its files (see store)."""

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
    """A shard of layers first_layer to end_layer - 1.

    `per_layer_input` is the name of the input for these layers' part of the per-layer embeddings.
    """

    first_layer: Index
    end_layer: Count
    states: tuple[StateSpec, ...]
    per_layer_input: Name | None = None
    folds: tuple[Fold, ...] = Field(
        default=(), exclude_if=lambda folds: not folds, description="by recurrent layer; omitted without one"
    )

    @property
    def hosted(self) -> tuple[StateSpec, ...]:
        """The states that the host holds: each is an input of the program, with an output of new rows."""
        return tuple(state for state in self.states if state.held == "host")

    @property
    def program_inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the program."""
        caches = (TensorSpec(name=state.name, shape=state.shape) for state in self.hosted)
        return (*self.inputs, *caches)

    @property
    def program_outputs(self) -> tuple[TensorSpec, ...]:
        """All outputs of the program."""
        rows = ((state.new_rows, state.shape) for state in self.hosted if state.new_rows is not None)
        return (
            *self.outputs,
            *(TensorSpec(name=name, shape=(n, heads, None, size)) for name, (n, heads, _, size) in rows),
        )

    @property
    def program_states(self) -> tuple[StateSpec, ...]:
        """All states of the program, which are those that the graph holds."""
        return tuple(state for state in self.states if state.held == "graph")

    @property
    def state_bytes(self) -> int:
        """The bytes of the states of its layers."""
        return sum(state.bytes for state in self.states)


class HeadShard(Shard):
    """A shard of the final norm and rows first_token to end_token - 1 of the output projection."""

    first_token: Index
    end_token: Count

    @property
    def slices(self) -> tuple[int, ...]:
        """The tokens of each slice, in the vocabulary's order."""
        return tuple(spec.shape[CHANNELS_AXIS] or 0 for spec in self.outputs)

    @property
    def best(self) -> "BestHead":
        """The view of this shard through its functions that find the best tokens."""
        return BestHead(
            **{
                **dict(self),
                "outputs": (TensorSpec(name=BEST, shape=channel_shape(BEST_CHANNELS * len(self.outputs))),),
            },
            slice_tokens=self.slices,
        )


BEST_CHANNELS = 4
"""The channels for the best token of a slice.

They are its logit, the two digits of its index in the slice, and whether all logits of the slice are finite
(1) or not (0).
"""

BEST_FIRST, BEST_DIGIT = 2048, 128
"""The index is (BEST_FIRST - first) x BEST_DIGIT + BEST_DIGIT - second; both digits are exact in fp16."""


class BestHead(HeadShard):
    """A view of a head shard through its functions that find the best token of each slice.

    It is no additional shard. The only output is BEST, with BEST_CHANNELS channels for each slice, in order.
    Of tokens with equal logits the lowest is the best.
    """

    slice_tokens: tuple[Count, ...]

    @property
    def slices(self) -> tuple[int, ...]:
        """The tokens of each slice, in the vocabulary's order."""
        return self.slice_tokens


class PerLayerEmbedding(Record):
    """A second embedding table, whose rows have `width` numbers for each layer, layer by layer.

    A layer shard takes the section of its layers, times `scale`, as [1, layers x width, T, 1], and the first
    hidden state as the input EMBEDDED.
    """

    tensor: Name
    width: Channels
    scale: Factor


class TokensFile(Record):
    """The file tokens.gguf: vocabulary, chat template and embedding tables."""

    path: InsidePath
    bytes: Bytes
    sha256: str
    embedding_tensor: Name
    embedding_scale: Factor = Field(default=1.0, description="factor of embedding rows, with hidden_scale")
    embedding_norm: Factor | None = Field(default=None, gt=0, description="epsilon; null: no norm of rows")
    position_tensor: Name | None = Field(default=None, description="rows that are added by position")
    per_layer: PerLayerEmbedding | None = None


class Manifest(Record):
    """The content of manifest.json."""

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
        description="the functions of every layer shard; the default one, for the block, is first",
    )
    head_functions: tuple[ShardFunction, ...] | None = Field(
        default=None, min_length=1, description="the functions of every head shard; null: as of layer shards"
    )
    head_outputs: HeadOutputs = Field(
        default=HeadOutputs.LOGITS,
        exclude_if=lambda outputs: outputs is HeadOutputs.LOGITS,
        description="argmax: for each function, head shards have another one, BEST_PREFIX + name, that finds "
        "the best token of each slice; omitted if it is logits",
    )
    experts: ExpertForm | None = Field(
        default=None, exclude_if=lambda form: form is None, description="omitted without mixtures of experts"
    )
    range_default: RangeDefault = Field(
        default=RangeDefault.BLOCK, description="T of the packages' default shape, if shapes are a range"
    )
    reshape_hint: ReshapeHint = Field(
        default=ReshapeHint.INFREQUENT, description="the hint that Core ML gets when it loads a shard"
    )
    context: Slots = Field(description="slots of one sequence")
    sequences: Slots = Field(description="number of sequences that the states hold")
    chunk: Count | None = Field(
        default=None,
        exclude_if=lambda chunk: chunk is None,
        description="the positions after which recurrent layers fold; omitted without such layers",
    )
    chunk_solve: ChunkSolve | None = Field(
        default=None, exclude_if=lambda solve: solve is None, description="omitted without gated delta nets"
    )
    pools: tuple[KVCacheGroup, ...] = Field(min_length=1)
    ropes: tuple[RopeTable, ...]
    hidden_scale: Factor = Field(default=1.0, gt=0, description="factor of the hidden state between shards")
    layer_shards: tuple[LayerShard, ...] = Field(min_length=1)
    head_shards: tuple[HeadShard, ...] = Field(min_length=1)
    tokens: TokensFile
    built_with: dict[str, str]

    @model_validator(mode="after")
    def _consistent(self) -> "Manifest":
        # Imported here, since that module imports this one.
        from anespec.manifests.consistency import contradictions

        if (first := next(contradictions(self), None)) is not None:
            raise ValueError(first)
        return self

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards: layers first, then heads."""
        return (*self.layer_shards, *self.head_shards)

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """The entries of all projections."""
        return tuple(tensor for shard in self.shards for tensor in shard.tensors)

    @property
    def state_bytes(self) -> int:
        """The bytes of all states."""
        return sum(shard.state_bytes for shard in self.layer_shards)

    @property
    def topology(self) -> tuple[int, ...]:
        """The layers per shard, such as (20, 4, 6, 2)."""
        return tuple(s.end_layer - s.first_layer for s in self.layer_shards)

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths that passes may have, ascending; the block is one of them."""
        if self.shapes is Shapes.RANGE:
            return range_widths(self.block, self.t_min, self.t_max, few=self.target is not Target.CPU)
        return tuple(sorted(function.rows for function in self.functions if function.rows is not None))

    @property
    def default_rows(self) -> int:
        """The T of a package's default shape, for which Core ML makes its compute plan."""
        is_one = self.shapes is Shapes.RANGE and self.range_default is RangeDefault.ONE
        return self.t_min if is_one else self.block

    def functions_of(self, shard: Shard) -> tuple[ShardFunction, ...]:
        """Return a shard's functions, the default first; for a BestHead those that find the best tokens."""
        functions = (self.head_functions if isinstance(shard, HeadShard) else None) or self.functions
        if isinstance(shard, BestHead):
            return tuple(each.model_copy(update={"name": BEST_PREFIX + each.name}) for each in functions)
        return functions

    def ways_through(self, shard: Shard) -> tuple[Shard, ...]:
        """Return the shard, and also its BestHead if it has functions that find the best tokens."""
        if self.head_outputs is HeadOutputs.LOGITS or isinstance(shard, BestHead):
            return (shard,)
        return (shard, shard.best) if isinstance(shard, HeadShard) else (shard,)

    def package_functions(self, shard: Shard) -> tuple[ShardFunction, ...]:
        """Return all functions of a shard's package, the default one first."""
        return tuple(each for way in self.ways_through(shard) for each in self.functions_of(way))

    @property
    def best_heads(self) -> tuple[BestHead, ...]:
        """The BestHeads of the head shards; empty if these do not find the best tokens."""
        ways = (way for shard in self.head_shards for way in self.ways_through(shard))
        return tuple(way for way in ways if isinstance(way, BestHead))

    def widths_of(self, shard: Shard) -> tuple[int, ...]:
        """Return the widths that a shard can run, ascending; the block is one of them."""
        return tuple(width for width in self.widths if self.function_of(shard, width) is not None)

    @property
    def head_widths(self) -> tuple[int, ...]:
        """The widths that the heads can run, ascending."""
        return self.widths_of(self.head_shards[0])

    def function_of(self, shard: Shard, rows: int) -> ShardFunction | None:
        """Return the function of a shard for passes of this width; None if there is none."""
        if not self.t_min <= rows <= self.t_max:
            return None
        return next((each for each in self.functions_of(shard) if each.rows in (None, rows)), None)

    def loaded_name(self, shard: Shard, function: ShardFunction) -> str | None:
        """Return the name with which a shard's function is loaded; None if it is the only one."""
        has_others = isinstance(shard, BestHead) or len(self.package_functions(shard)) > 1
        return function.name if has_others else None

    @property
    def spare_slots(self) -> int:
        """The number of slots at the end of every region that hold no token (see `spare_slots`)."""
        return spare_slots(self.kv_form, self.t_max)

    def pool(self, name: str) -> KVCacheGroup:
        """Return the pool with this name; raise KeyError if there is none."""
        return {pool.name: pool for pool in self.pools}[name]
