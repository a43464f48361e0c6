"""What a conversion will build: the options checked against the model, before any weight is read."""

from dataclasses import dataclass

from anespec.convert.source.model import EMBEDDING, LayerTensors, SourceModel
from anespec.convert.topology import Topology, plan_topology
from anespec.convert.weights.encoding import stored_bytes
from anespec.convert.weights.formats import choose
from anespec.manifests.errors import RequestError
from anespec.manifests.schema import BASE_ALIGNMENT, AttentionShape, Pool, Target
from anespec.manifests.weight_choice import HEAD, WeightChoice

DEFAULT_CONTEXT = 2048
WIDEST_CPU_PASS = 128
"""The portable backend's prefill uses wide passes where the exactness gate proves them equal."""

DEFAULT_WEIGHTS = WeightChoice()

MAX_BLOCK = 64
MAX_SLOTS = 1 << 24
"""Far beyond any model's context; a pass has masks over all slots."""


@dataclass(frozen=True)
class ConvertOptions:
    """What a person may choose. None means: from the target or from the model.

    `context` is in slots (tokens) per sequence and is rounded up to a multiple of 64.
    """

    target: Target = Target.MAC
    block: int = 4
    context: int | None = None
    sequences: int = 1
    weights: WeightChoice = DEFAULT_WEIGHTS
    attention: AttentionShape | None = None
    topology: tuple[int, ...] | None = None
    head_shards: int | None = None


class ConversionPlan:
    """A model and the options, checked against each other: everything but the bytes.

    Raises RequestError from the constructor where the options do not fit the model.
    """

    def __init__(self, model: SourceModel, options: ConvertOptions) -> None:
        sizes = model.sizes
        if not 1 <= options.block <= MAX_BLOCK:
            raise RequestError(f"--block {options.block} is not between 1 and {MAX_BLOCK}")
        context = options.context or max(options.block, min(DEFAULT_CONTEXT, sizes.trained_context))
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
        self.topology: Topology = plan_topology(
            sizes.layers,
            self.largest_layer_bytes(),
            sizes.vocabulary,
            options.target,
            options.topology,
            options.head_shards,
        )

    @property
    def beyond_training(self) -> bool:
        """Whether the context is longer than the model was trained for."""
        return self.context > _aligned(self.model.sizes.trained_context)

    def layer_bytes(self, index: int) -> int:
        """Stored bytes of one layer's projections in the chosen weight formats."""
        names = LayerTensors(index)
        return sum(
            self._stored_bytes(names.weight(role), role, shape)
            for role, shape in self.model.layer_matrices.items()
        )

    def largest_layer_bytes(self) -> int:
        """Stored bytes of the largest layer; where the source mixes types, layers may differ."""
        return max(self.layer_bytes(index) for index in range(self.model.sizes.layers))

    def head_bytes(self) -> int:
        """Stored bytes of the whole output projection."""
        sizes = self.model.sizes
        return self._stored_bytes(self.model.head_tensor, HEAD, (sizes.vocabulary, sizes.d))

    def weight_bytes(self) -> int:
        """Stored bytes of all shards: what a run has to write."""
        layers = range(self.model.sizes.layers)
        return sum(self.layer_bytes(index) for index in layers) + self.head_bytes()

    def _stored_bytes(self, tensor: str, kind: str, shape: tuple[int, int]) -> int:
        asked = self.options.weights.format_of(kind)
        source = self.model.file.info(tensor).kind
        return stored_bytes(choose(asked, shape[1], source).encoding, shape)

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
