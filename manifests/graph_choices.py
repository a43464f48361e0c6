"""How a graph is written: attention, shapes and K/V. The schema of manifests has these names too."""

from enum import StrEnum


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
    """How K/V are kept and written (docs/graph.md). All forms give the same bits."""

    REREAD = "reread"
    BLENDED = "blended"
    SLICE_UPDATE = "slice_update"
    PACKED = "packed"
    OUTSIDE = "outside"
    AT_POSITION = "at_position"
