"""From a block to the arrays that shards take: embeddings, rope rows, masks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import ArtifactError
from anespec.manifests.gguf_file import GGUFFile
from anespec.manifests.schema import (
    EMBEDDED,
    HIDDEN_IN,
    LayerShard,
    Manifest,
    Pool,
    RopeTable,
    TokensFile,
)
from anespec.runtime.backends.runner import Tensor
from anespec.runtime.passes import Row

MASKED = np.float16(-1e4)
"""exp(-1e4) is exactly 0 in fp16; minus infinity would make rows not a number on some hardware."""


NO_INPUTS: Mapping[str, Tensor] = MappingProxyType({})


class Embedding:
    """The embedding table in tokens.gguf; rows are dequantised when looked up."""

    def __init__(self, path: Path, tokens: TokensFile, shards: Sequence[LayerShard] = ()) -> None:
        """Open the table; raises GGUFError or StorageError where that fails.

        `shards` are those that may take rows of the per-layer table.

        Raises:
            ArtifactError: a table is not as wide as the shards take it.
        """
        self.file = GGUFFile(path)
        self.per_layer = tokens.per_layer
        self.shards = tuple(shards)
        self.tensor = tokens.embedding_tensor
        self.scale = tokens.embedding_scale
        self.vocabulary = self.file.info(self.tensor).shape[0]
        taken = {spec.name: spec.shape[1] for shard in shards for spec in shard.inputs if len(spec.shape) > 1}
        self._require_width(self.tensor, taken.get(HIDDEN_IN))
        if self.per_layer is not None and shards:
            self._require_width(self.per_layer.tensor, shards[-1].end_layer * self.per_layer.width)

    def _require_width(self, tensor: str, width: int | None) -> None:
        shape = self.file.info(tensor).shape
        if width is not None and shape != (self.vocabulary, width):
            raise ArtifactError(
                f"{self.file.path}: {tensor!r} has shape {shape}, but the shards take "
                f"{(self.vocabulary, width)}; convert the model again"
            )

    def hidden(self, tokens: NDArray[np.int64]) -> Tensor:
        """Token ids (T,) to the first hidden state, fp16 [1, d, T, 1].

        Raises:
            ArtifactError: a token's row is not finite in fp16; it would spoil the KV state for good.
        """
        return self._looked_up(self.tensor, tokens, self.scale)

    def layer_inputs(self, tokens: NDArray[np.int64]) -> dict[str, Tensor]:
        """What shards take beside the hidden state where layers have embeddings of their own.

        Empty for most models. Raises like `hidden`.
        """
        if self.per_layer is None:
            return {}
        table, width = self.per_layer, self.per_layer.width
        rows = self._looked_up(table.tensor, tokens, table.scale)
        parts = {
            shard.per_layer_input: rows[:, shard.first_layer * width : shard.end_layer * width]
            for shard in self.shards
            if shard.per_layer_input is not None
        }
        return {EMBEDDED: self.hidden(tokens), **parts}

    def _looked_up(self, tensor: str, tokens: NDArray[np.int64], scale: float) -> Tensor:
        with np.errstate(over="ignore"):
            rows = (self.file.rows(tensor, tokens) * np.float32(scale)).astype(np.float16)
        if not np.isfinite(rows).all():
            raise ArtifactError(
                f"{self.file.path}: the embedding of a token in {tokens.tolist()} is not finite; "
                "convert a GGUF whose embeddings are numbers that fp16 holds"
            )
        return np.ascontiguousarray(rows.T)[None, :, :, None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        self.file.close()


class Feeds:
    """Builds a pass's inputs by the manifest's names. Rope rows are computed once for all positions."""

    def __init__(self, manifest: Manifest) -> None:
        self.pools = manifest.pools
        self.rope_rows = {
            table.cos_input: _rope_rows(table, manifest.context, np.cos) for table in manifest.ropes
        } | {table.sin_input: _rope_rows(table, manifest.context, np.sin) for table in manifest.ropes}
        self.context = manifest.context

    def block_feed(
        self, rows: Sequence[Row], hidden: Tensor, layer_inputs: Mapping[str, Tensor] = NO_INPUTS
    ) -> dict[str, Tensor]:
        """All inputs of a layer shard: `hidden` [1, d, T, 1], rope rows [T, n], masks per pool.

        `layer_inputs` are those of layers with embeddings of their own (`Embedding.layer_inputs`).

        Raises:
            ArtifactError: a row stands outside its pool or the context (a bug of the caller).
        """
        positions = np.array([row.position for row in rows])
        if positions.min() < 0 or positions.max() >= self.context:
            raise ArtifactError(f"positions {positions.tolist()} leave the context of {self.context}")
        feed: dict[str, Tensor] = {HIDDEN_IN: hidden, **layer_inputs}
        for name, table in self.rope_rows.items():
            feed[name] = table[positions]
        for index, pool in enumerate(self.pools):
            attend, write = _masks(rows, index, pool)
            feed[pool.mask_input] = attend
            feed[pool.write_input] = write
        return feed


def _rope_rows(table: RopeTable, context: int, function: np.ufunc) -> Tensor:
    """[context, rotary_dim / 2]: function(position * frequency) * magnitude, in float64, then fp16."""
    positions = np.arange(context, dtype=np.float64)[:, None]
    grown = 1 + table.temperature * np.log1p(positions // table.temperature_step)
    angles = positions * np.asarray(table.frequencies, dtype=np.float64)
    rows: Tensor = (function(angles) * (table.magnitude * grown)).astype(np.float16)
    return rows


def _masks(rows: Sequence[Row], index: int, pool: Pool) -> tuple[Tensor, Tensor]:
    """attn_mask [1, 1, T, S] and kv_write_mask [1, 1, S, T] of one pool."""
    count = len(rows)
    attend = np.full((1, 1, count, pool.slots), MASKED)
    write = np.zeros((1, 1, pool.slots, count), np.float16)
    for lane, row in enumerate(rows):
        own = row.slots[index]
        slots = [slot for span in own.visible if span for slot in (span[0], span[-1])]
        slots += [] if own.home is None else [own.home]
        if not all(0 <= slot < pool.slots for slot in slots):
            raise ArtifactError(f"slots {slots} leave the pool {pool.name!r} of {pool.slots}")
        for span in own.visible:
            attend[0, 0, lane, span.start : span.stop : span.step] = 0
        if own.home is not None:
            write[0, 0, own.home, lane] = 1
    return attend, write
