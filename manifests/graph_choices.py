"""The choices of how a graph is written: attention, shapes, K/V and heads. Manifests record them."""

from enum import StrEnum

# For shapes that are a range of T: the default T, the hint to Core ML, and the widths in use.


class RangeDefault(StrEnum):
    """The T of a range's default shape (docs/graph.md): a single row, or the block."""

    ONE = "1"
    BLOCK = "block"


class ReshapeHint(StrEnum):
    """The hint to Core ML on how often the shapes of a range's passes change; NONE gives no hint."""

    NONE = "none"
    FREQUENT = "frequent"
    INFREQUENT = "infrequent"


def range_widths(block: int, t_min: int, t_max: int, *, few: bool = False) -> tuple[int, ...]:
    """Return the widths in use of shards that accept any of t_min..t_max: the block and powers of two.

    They are so few that the exactness gate can measure each of them. With `few`, as on a Neural Engine, they
    are only t_min, the block and t_max: every other width took minutes in every process there (B: ane-book
    Exp. 26), and a pass of fewer rows takes as long as a block.
    """
    if few:
        return tuple(sorted({t_min, block, t_max}))
    powers = (1 << power for power in range(t_max.bit_length()))
    return tuple(sorted({block, *(width for width in powers if t_min <= width <= t_max)}))


class AttentionShape(StrEnum):
    """How a layer's attention is written in the graph (docs/graph.md)."""

    PER_KV_HEAD = "per_kv_head"
    GROUPED = "grouped"


class Shapes(StrEnum):
    """How many rows a shard's functions take (docs/graph.md).

    `range`: one function for any T up to a maximum. `static`: one function for the block. `functions`: one
    function for each width; all share weights and states.
    """

    RANGE = "range"
    STATIC = "static"
    FUNCTIONS = "functions"


class KVForm(StrEnum):
    """How K/V are kept and written (docs/graph.md).

    All forms give the same bits, except for the sign of a zero, which a blend loses and no result shows.
    """

    REREAD = "reread"
    BLENDED = "blended"
    SLICE_UPDATE = "slice_update"
    PACKED = "packed"
    OUTSIDE = "outside"
    AT_POSITION = "at_position"


class ExpertForm(StrEnum):
    """How a mixture of experts is written in the graph (docs/graph.md).

    `each`: every expert is an MLP whose output is multiplied by its weight. `wide`: all experts are one MLP,
    whose middle is multiplied by the weights.
    """

    EACH = "each"
    WIDE = "wide"


class ChunkSolve(StrEnum):
    """How a gated delta net solves for what the rows of a chunk write (docs/graph.md).

    `products`: by matrix products. `broadcast`: within blocks of eight rows by products of elements and their
    sums, and only beyond these by matrix products.
    """

    PRODUCTS = "products"
    BROADCAST = "broadcast"


class HeadOutputs(StrEnum):
    """The outputs of the heads (docs/graph.md).

    `logits`: only all logits. `argmax`: additional functions return the best token of each slice, for passes
    that need no more. Both should give the same tokens. The exactness gate checks that on each machine, since
    another compilation may round differently.
    """

    LOGITS = "logits"
    ARGMAX = "argmax"
