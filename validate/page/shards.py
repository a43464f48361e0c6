"""Lay out how an artifact's bytes are divided into shards."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from anespec.manifests.schema import HeadShard, LayerShard, Manifest, Shard
from anespec.system.formatting import bytes_text
from anespec.validate.page.scales import BarSegment, stacked


@dataclass(frozen=True)
class ShardRow:
    """One shard in words."""

    name: str
    holds: str
    weights: str
    size: str
    states: int


@dataclass(frozen=True)
class ShardsView:
    """All shards, as one bar of bytes and as rows."""

    bar: tuple[BarSegment, ...]
    rows: tuple[ShardRow, ...]
    total: str


def view_shards(manifest: Manifest) -> ShardsView:
    """Return the shards in order, layers first."""
    rows = tuple(_row(shard) for shard in manifest.shards)
    looks = [f"layers {_parity(number)}" for number in range(len(manifest.layer_shards))]
    looks += [f"head {_parity(number)}" for number in range(len(manifest.head_shards))]
    parts = [
        (float(shard.bytes), look, f"{row.name}: {row.holds}, {row.size}", row.size)
        for shard, look, row in zip(manifest.shards, looks, rows, strict=True)
    ]
    return ShardsView(stacked(parts), rows, bytes_text(sum(shard.bytes for shard in manifest.shards)))


def stem(shard: str) -> str:
    """Return the name of a shard without folder and extension."""
    return PurePosixPath(shard).stem


def _row(shard: Shard) -> ShardRow:
    match shard:
        case LayerShard():
            holds, states = span("layer", shard.first_layer, shard.end_layer), len(shard.states)
        case HeadShard():
            holds, states = span("token", shard.first_token, shard.end_token), 0
        case _:
            raise TypeError(f"{shard.path} is neither a layer shard nor a head shard")
    return ShardRow(stem(shard.path), holds, ", ".join(shard.formats), bytes_text(shard.bytes), states)


def _parity(number: int) -> str:
    return "odd" if number % 2 else "even"


def span(what: str, first: int, end: int) -> str:
    """Return `layer 3` or `layers 3 to 7`."""
    return f"{what} {first}" if end - first == 1 else f"{what}s {first} to {end - 1}"
