"""From a block to the arrays that shards take: embeddings, rope rows, masks."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import ArtifactError
from anespec.manifests.gguf_file import GGUFFile
from anespec.manifests.schema import HIDDEN_IN, Manifest, Pool, RopeTable, TokensFile
from anespec.runtime.backends.runner import Tensor
from anespec.runtime.block import Block

MASKED = np.float16(-1e4)
"""exp(-1e4) is exactly 0 in fp16; minus infinity would make rows not a number on some hardware."""


class Embedding:
    """The embedding table in tokens.gguf; rows are dequantised when looked up."""

    def __init__(self, path: Path, tokens: TokensFile) -> None:
        """Open the table; raises GGUFError or StorageError where that fails."""
        self.file = GGUFFile(path)
        self.tensor = tokens.embedding_tensor
        self.scale = tokens.embedding_scale
        self.vocabulary = self.file.info(self.tensor).shape[0]

    def hidden(self, tokens: NDArray[np.int64]) -> Tensor:
        """Token ids (T,) to the first hidden state, fp16 [1, d, T, 1].

        Raises:
            ArtifactError: a token's row is not finite in fp16; it would spoil the KV state for good.
        """
        with np.errstate(over="ignore"):
            rows = (self.file.rows(self.tensor, tokens) * np.float32(self.scale)).astype(np.float16)
        if not np.isfinite(rows).all():
            raise ArtifactError(
                f"{self.file.path}: the embedding of a token in {tokens.tolist()} is not finite"
            )
        return np.ascontiguousarray(rows.T)[None, :, :, None]

    def close(self) -> None:
        """Release the file."""
        self.file.close()


def fed_shapes(manifest: Manifest) -> dict[str, tuple[int | None, ...]]:
    """Every input that `Feeds.block_feed` gives to a layer shard; None is T where T may vary."""
    t = None if manifest.t_max > manifest.t_min else manifest.t_max
    shapes: dict[str, tuple[int | None, ...]] = {HIDDEN_IN: (1, manifest.hyperparameters.d, t, 1)}
    for table in manifest.ropes:
        shapes[table.cos_input] = shapes[table.sin_input] = (t, len(table.frequencies))
    for pool in manifest.pools:
        shapes[pool.mask_input] = (1, 1, t, pool.slots)
        shapes[pool.write_input] = (1, 1, pool.slots, t)
    return shapes


class Feeds:
    """Builds a pass's inputs by the manifest's names. Rope rows are computed once for all positions."""

    def __init__(self, manifest: Manifest) -> None:
        self.pools = manifest.pools
        self.rope_rows = {
            table.cos_input: _rope_rows(table, manifest.context, np.cos) for table in manifest.ropes
        } | {table.sin_input: _rope_rows(table, manifest.context, np.sin) for table in manifest.ropes}
        self.context = manifest.context

    def block_feed(self, block: Block, hidden: Tensor) -> dict[str, Tensor]:
        """All inputs of a layer shard: `hidden` [1, d, T, 1], rope rows [T, n], masks per pool.

        Raises:
            ArtifactError: a row stands outside its pool or the context (a bug of the caller).
        """
        positions = np.array([row.position for row in block.rows])
        if positions.min() < 0 or positions.max() >= self.context:
            raise ArtifactError(f"positions {positions.tolist()} leave the context of {self.context}")
        feed: dict[str, Tensor] = {HIDDEN_IN: hidden}
        for name, table in self.rope_rows.items():
            feed[name] = table[positions]
        for index, pool in enumerate(self.pools):
            attend, write = _masks(block, index, pool)
            feed[pool.mask_input] = attend
            feed[pool.write_input] = write
        return feed


def _rope_rows(table: RopeTable, context: int, function: np.ufunc) -> Tensor:
    """[context, rotary_dim / 2]: function(position * frequency) * magnitude, in float64, then fp16."""
    angles = np.arange(context, dtype=np.float64)[:, None] * np.asarray(table.frequencies, dtype=np.float64)
    rows: Tensor = (function(angles) * table.magnitude).astype(np.float16)
    return rows


def _masks(block: Block, index: int, pool: Pool) -> tuple[Tensor, Tensor]:
    """attn_mask [1, 1, T, S] and kv_write_mask [1, 1, S, T] of one pool."""
    count = len(block.rows)
    attend = np.full((1, 1, count, pool.slots), MASKED)
    write = np.zeros((1, 1, pool.slots, count), np.float16)
    for lane, row in enumerate(block.rows):
        place = row.places[index]
        slots = [slot for span in place.visible if span for slot in (span[0], span[-1])]
        slots += [] if place.slot is None else [place.slot]
        if not all(0 <= slot < pool.slots for slot in slots):
            raise ArtifactError(f"slots {slots} leave the pool {pool.name!r} of {pool.slots}")
        for span in place.visible:
            attend[0, 0, lane, span.start : span.stop : span.step] = 0
        if place.slot is not None:
            write[0, 0, place.slot, lane] = 1
    return attend, write
