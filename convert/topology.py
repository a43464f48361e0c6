"""How layers are grouped into shards, and the vocabulary into head shards."""

from dataclasses import dataclass
from itertools import pairwise

from anespec.manifests.errors import RequestError
from anespec.manifests.schema import Target

MAC_SHARD_BYTES = 1_900_000_000
"""2015.8 MB was resident on the Neural Engine and 2.3 GB was not (docs/DESIGN.md, grades A and B)."""

CPU_SHARD_BYTES = 1_900_000_000
"""Only bounds the converter's memory: the portable backend chains all shards."""

HEAD_CHANNELS = 16384
"""Widest slice of an LM head measured on the Neural Engine (docs/DESIGN.md, grade B)."""


@dataclass(frozen=True)
class Topology:
    """Layers per shard, and the token ranges of the head shards."""

    layers: tuple[int, ...]
    heads: tuple[range, ...]

    @property
    def layer_ranges(self) -> tuple[range, ...]:
        """The layers of each shard."""
        ends = [sum(self.layers[: i + 1]) for i in range(len(self.layers))]
        return tuple(range(end - count, end) for count, end in zip(self.layers, ends, strict=True))

    def __str__(self) -> str:
        return "+".join(str(count) for count in self.layers)


def plan_topology(
    layers: int,
    layer_bytes: int,
    vocabulary: int,
    target: Target,
    override: tuple[int, ...] | None = None,
    head_shards: int | None = None,
) -> Topology:
    """Group equal layers into as few shards as the target's limit allows, as evenly as possible.

    Raises:
        RequestError: the override does not add up to the layers, or asks for impossible heads.
    """
    if override is not None:
        if sum(override) != layers or min(override) < 1:
            raise RequestError(
                f"--topology {','.join(map(str, override))} adds up to {sum(override)}, but the model has "
                f"{layers} layers; every shard needs at least one"
            )
        counts = override
    else:
        limit = MAC_SHARD_BYTES if target is Target.MAC else CPU_SHARD_BYTES
        per_shard = max(1, limit // max(1, layer_bytes))
        counts = _even(layers, -(-layers // per_shard))
    slices = head_shards if head_shards is not None else -(-vocabulary // HEAD_CHANNELS)
    if not 1 <= slices <= vocabulary:
        raise RequestError(f"--head-shards {slices} is not between 1 and the vocabulary's {vocabulary}")
    ends = [0]
    for width in _even(vocabulary, slices):
        ends.append(ends[-1] + width)
    heads = tuple(range(a, b) for a, b in pairwise(ends))
    return Topology(counts, heads)


def _even(total: int, parts: int) -> tuple[int, ...]:
    """`total` in `parts` pieces whose sizes differ by at most one, larger ones first."""
    size, extra = divmod(total, parts)
    return tuple(size + (i < extra) for i in range(parts))
