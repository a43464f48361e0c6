"""How a graph is written: attention, shapes and K/V. The schema of manifests has these names too."""

from enum import StrEnum

# Shapes that are a range of T: the default T, the hint that Core ML gets, and the widths that are run.


class RangeDefault(StrEnum):
    """The T of a range's default shape (docs/graph.md): a single row, or the block."""

    ONE = "1"
    BLOCK = "block"


class ReshapeHint(StrEnum):
    """How often Core ML is told that the shape of a range's passes changes: nothing, or its own words."""

    NONE = "none"
    FREQUENT = "frequent"
    INFREQUENT = "infrequent"


def range_widths(block: int, t_min: int, t_max: int, *, few: bool = False) -> tuple[int, ...]:
    """The widths that are run where any of t_min..t_max can be: the block, and powers of two.

    So few that the exactness gate can measure every one that the engine will ever run. Where `few` are asked
    for, as on a Neural Engine, only the narrowest, the block and the widest: each more took minutes in every
    process there (B: ane-book Exp. 26), and a pass of few rows takes as long as one of the block.
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

    `range`: one function of any T up to a widest. `static`: one, of the block alone. `functions`: one of each
    width, which share weights and states.
    """

    RANGE = "range"
    STATIC = "static"
    FUNCTIONS = "functions"


class KVForm(StrEnum):
    """How K/V are kept and written (docs/graph.md). All forms give the same bits but for the sign of a zero,
    which a blend loses and no result shows."""

    REREAD = "reread"
    BLENDED = "blended"
    SLICE_UPDATE = "slice_update"
    PACKED = "packed"
    OUTSIDE = "outside"
    AT_POSITION = "at_position"


class HeadOutputs(StrEnum):
    """What a pass through the head can return (docs/graph.md). Both are meant to give the same
    tokens. The exactness gate checks it on each machine: another compilation may round otherwise.

    `logits`: all of them. `argmax`: from a function of its own also the best token of each slice alone, which
    a pass runs that needs no more.
    """

    LOGITS = "logits"
    ARGMAX = "argmax"
