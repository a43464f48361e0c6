"""Look up tokens in an artifact's embedding table, which gives the first hidden state."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.rows import GGUFRows
from anespec.manifests.channel_layout import channels_of, from_rows
from anespec.manifests.schema import EMBEDDED, HIDDEN_IN, LayerShard, TokensFile
from anespec.manifests.store import Artifact
from anespec.runtime.backends.runner import Tensor
from anespec.system.errors import ArtifactError


def open_embedding(artifact: Artifact) -> "Embedding":
    """Open the embedding table of an artifact.

    Raises:
        ArtifactError: tokens.gguf is missing or damaged, or the shape of a table does not fit the shards.
    """
    manifest = artifact.manifest
    embedding = Embedding(artifact.tokens_path(), manifest.tokens, manifest.layer_shards)
    if (wanted := manifest.hyperparameters.vocabulary) != embedding.vocabulary:
        embedding.close()
        raise ArtifactError(
            f"{artifact.root}: the embedding table has {embedding.vocabulary} rows, but the vocabulary of "
            f"the manifest has {wanted} tokens; convert the model again"
        )
    if (positions := embedding.positions) is not None and positions < manifest.context:
        embedding.close()
        raise ArtifactError(
            f"{artifact.root}: {positions} positions have embeddings, but the context of the manifest is "
            f"{manifest.context}; convert the model again"
        )
    return embedding


class Embedding:
    """The embedding table in tokens.gguf; rows are dequantised when looked up."""

    def __init__(self, path: Path, tokens: TokensFile, shards: Sequence[LayerShard] = ()) -> None:
        """Open the table in `path`. `shards` are the layer shards, whose widths the tables must have.

        Raises:
            GGUFError: the file is not a valid GGUF.
            StorageError: the file cannot be read.
            ArtifactError: the width of a table differs from the width that the shards take.
        """
        self.file = GGUFRows(path)
        self.per_layer = tokens.per_layer
        self.shards = tuple(shards)
        self.tensor = tokens.embedding_tensor
        self.scale = tokens.embedding_scale
        self.norm_epsilon = tokens.embedding_norm
        self.position_tensor = tokens.position_tensor
        self.vocabulary = self.file.info(self.tensor).shape[0]
        taken = {spec.name: channels_of(spec.shape) for shard in shards for spec in shard.inputs}
        self._require_width(self.tensor, taken.get(HIDDEN_IN))
        if self.position_tensor is not None:
            self._require_width(self.position_tensor, taken.get(HIDDEN_IN), self.positions)
        if self.per_layer is not None and shards:
            self._require_width(self.per_layer.tensor, shards[-1].end_layer * self.per_layer.width)

    @property
    def positions(self) -> int | None:
        """The number of positions that have a row of their own; None if positions have no rows."""
        return None if self.position_tensor is None else self.file.info(self.position_tensor).shape[0]

    def _require_width(self, tensor: str, width: int | None, rows: int | None = None) -> None:
        shape, rows = self.file.info(tensor).shape, rows or self.vocabulary
        if width is not None and shape != (rows, width):
            raise ArtifactError(
                f"{self.file.path}: {tensor!r} has shape {shape}, but the shards take {(rows, width)}; "
                "convert the model again"
            )

    def hidden(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """Return the first hidden state of token ids (T,) at positions (T,), an fp16 channel tensor.

        Raises:
            ArtifactError: a token's row is not finite in fp16, so that its K/V would never be finite again;
                or the file was truncated.
        """
        return self._looked_up(self.tensor, tokens, self.scale, self.norm_epsilon, positions)

    def layer_inputs(self, tokens: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return the other inputs, by name, of shards whose layers have embeddings of their own.

        Empty for most models. Raises like `hidden`.
        """
        if self.per_layer is None:
            return {}
        table, width = self.per_layer, self.per_layer.width
        rows = self._looked_up(table.tensor, tokens, table.scale)
        own = {
            shard.per_layer_input: rows[:, shard.first_layer * width : shard.end_layer * width]
            for shard in self.shards
            if shard.per_layer_input is not None
        }
        return {EMBEDDED: self._looked_up(self.tensor, tokens, self.scale, self.norm_epsilon), **own}

    def _looked_up(
        self,
        tensor: str,
        tokens: NDArray[np.int64],
        scale: float,
        norm_epsilon: float | None = None,
        positions: NDArray[np.int64] | None = None,
    ) -> Tensor:
        rows = self.file.rows(tensor, tokens)
        with np.errstate(over="ignore", invalid="ignore"):
            if norm_epsilon is not None:
                mean_square = np.square(rows).mean(axis=-1, keepdims=True)
                rows = rows / np.sqrt(mean_square + np.float32(norm_epsilon))
            rows = rows * np.float32(scale)
            if positions is not None and self.position_tensor is not None:
                rows = rows + self.file.rows(self.position_tensor, positions)
            hidden = rows.astype(np.float16)
        if not np.isfinite(hidden).all():
            raise ArtifactError(
                f"{self.file.path}: the embedding of a token in {tokens.tolist()} is not finite; "
                "convert a GGUF whose embeddings are numbers that fp16 holds"
            )
        return from_rows(hidden)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.file.close()
