"""What a conversion will build: the options checked against the model, before any weight is read."""

from dataclasses import dataclass

from anespec.convert.bands import SIZES
from anespec.convert.preset_choice import choose_preset
from anespec.convert.source.model import EMBEDDING, SourceModel
from anespec.convert.topology import StackSizes, Topology, TopologyPlan, plan_topology
from anespec.convert.weights.stored import stored_bytes
from anespec.manifests.errors import RequestError
from anespec.manifests.presets import MatchedModel
from anespec.manifests.schema import BASE_ALIGNMENT, AttentionShape, Pool, Target, WeightFormat

WIDEST_CPU_PASS = 128
"""The portable backend's prefill uses wide passes where the exactness gate proves them equal."""

MAX_BLOCK = 64
MAX_SLOTS = 1 << 24
"""Far beyond any model's context; a pass has masks over all slots."""


@dataclass(frozen=True)
class ConvertOptions:
    """What a person may choose. None means: from the target or from the model.

    `context` is in slots (tokens) per sequence and is rounded up to a multiple of 64. `preset` is the
    name of one, or `none`; a preset that matches the model applies by itself.
    """

    target: Target = Target.MAC
    block: int = 4
    context: int | None = None
    sequences: int = 1
    weights: WeightFormat = WeightFormat.INT8_CHANNEL
    attention: AttentionShape | None = None
    topology: tuple[int, ...] | None = None
    head_shards: int | None = None
    preset: str | None = None


class ConversionPlan:
    """A model and the options, checked against each other: everything but the bytes.

    Raises RequestError from the constructor where the options do not fit the model.
    """

    def __init__(self, model: SourceModel, options: ConvertOptions) -> None:
        sizes = model.sizes
        if not 1 <= options.block <= MAX_BLOCK:
            raise RequestError(f"--block {options.block} is not between 1 and {MAX_BLOCK}")
        context = options.context or max(
            options.block, min(SIZES[options.target].context, sizes.trained_context)
        )
        if context < options.block or options.sequences < 1:
            raise RequestError(
                f"--context {context} must be at least the block ({options.block}), "
                f"--sequences {options.sequences} at least 1"
            )
        self.model = model
        self.options = options
        self.context = _aligned(context)
        if self.context * options.sequences > MAX_SLOTS:
            raise RequestError(
                f"--context {context} times --sequences {options.sequences} asks for more than the "
                f"{MAX_SLOTS} slots that a state can have"
            )
        self.attention = options.attention or (
            AttentionShape.GROUPED if options.target is Target.CPU else AttentionShape.PER_KV_HEAD
        )
        self.t_max = max(options.block, WIDEST_CPU_PASS) if options.target is Target.CPU else options.block
        self.pool = Pool(
            name="global",
            slots=self.context * options.sequences,
            region_slots=self.context,
            mask_input="attn_mask",
            write_input="kv_write_mask",
        )
        self.sharding: TopologyPlan = plan_topology(
            self._stack(),
            options.target,
            preset=choose_preset(
                options.preset,
                MatchedModel.of(model.family.architecture, sizes),
                options.target,
                options.weights,
            ),
            override=options.topology,
            head_shards=options.head_shards,
        )

    def _stack(self) -> StackSizes:
        """What the topology divides."""
        sizes = self.model.sizes
        return StackSizes(
            layer_bytes=(self.layer_bytes(),) * sizes.layers,
            kinds=("full",) * sizes.layers,
            vocabulary=sizes.vocabulary,
            head_bytes=self.head_bytes(),
        )

    @property
    def topology(self) -> Topology:
        """How layers and vocabulary are divided; `sharding` says why."""
        return self.sharding.topology

    @property
    def beyond_training(self) -> bool:
        """Whether the context is longer than the model was trained for."""
        return self.context > _aligned(self.model.sizes.trained_context)

    def layer_bytes(self) -> int:
        """Stored bytes of one layer's projections in the chosen weight format."""
        shapes = self.model.layer_matrices.values()
        return sum(stored_bytes(rows, columns, self.options.weights) for rows, columns in shapes)

    def head_bytes(self) -> int:
        """Stored bytes of the whole output projection."""
        sizes = self.model.sizes
        return stored_bytes(sizes.vocabulary, sizes.d, self.options.weights)

    def weight_bytes(self) -> int:
        """Stored bytes of all shards: what a run has to write."""
        return self.model.sizes.layers * self.layer_bytes() + self.head_bytes()

    def tokens_bytes(self) -> int:
        """Bytes of the embedding table as the source stores it."""
        return self.model.file.info(EMBEDDING).nbytes

    def estimated_bytes(self) -> int:
        """Bytes of the artifact, vocabulary and graph text left out."""
        return self.weight_bytes() + self.tokens_bytes()

    def state_bytes(self) -> int:
        """Bytes of the KV state in memory."""
        sizes = self.model.sizes
        return 2 * 2 * sizes.layers * sizes.kv_heads * sizes.head_dim * self.pool.slots


def _aligned(slots: int) -> int:
    """`slots` rounded up, so that every region's base is aligned."""
    return -(-slots // BASE_ALIGNMENT) * BASE_ALIGNMENT
