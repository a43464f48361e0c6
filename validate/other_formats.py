"""Estimate the size and error of a model in each weight format, from a sample of its tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from anespec.convert.source.matrix import block_kind
from anespec.convert.source.model import Matrix, SourceModel
from anespec.convert.weights.encoding import stored_bytes
from anespec.convert.weights.formats import GROUP_ROWS, choose
from anespec.convert.weights.stored import AddedError, stored_pieces
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Count, Index, Manifest, Record, StoredTensor, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment, Verdict, VerdictFile
from anespec.manifests.weight_choice import kind_of

ESTIMATE_VERSION = "3"

MAX_WEIGHTS = 1_500_000
"""The most weights that are stored in each format; all formats together take about a second."""

PLACES = (0.0, 0.5, 1.0)
"""Which layers' tensors stand for a kind in a large model, as shares of the depth: first, middle and last."""


class FormatEstimate(Record):
    """All projections stored in one format, or in its fallback where they do not fit."""

    weights: WeightFormat
    bytes: Index = Field(description="of all shards")
    relative_error: float = Field(
        ge=0, description="the error that storing adds, relative to the size of the numbers"
    )
    fallbacks: Index = Field(description="tensors stored in another format, since they do not fit this one")


class FormatEstimates(Verdict):
    """One estimate for each format.

    Bytes are exact but for headers. Errors are those of `sampled` of the `total` weights.
    """

    estimates: tuple[FormatEstimate, ...]
    sampled: Count
    total: Count


class FormatsFile(VerdictFile[FormatEstimates]):
    """gates/formats.json."""

    gate = "formats"


def formats_circumstances(artifact: Artifact) -> RunEnvironment:
    """Return the environment in which estimates hold: every machine."""
    return RunEnvironment(
        backend="convert",
        library_version=ESTIMATE_VERSION,
        machine="any",
        threads=1,
        artifact=artifact.fingerprint,
    )


def estimate_formats(artifact: Artifact, source: Path) -> FormatEstimates:
    """Store a sample of `source`, the GGUF that was converted, in every format; record the estimates.

    Raises:
        GGUFError, UnsupportedModelError: a tensor cannot be read or stored.
        StorageError: the result cannot be written.
    """
    shards, tensors = artifact.manifest.shards, artifact.manifest.tensors
    headers = sum(shard.bytes for shard in shards) - sum(tensor.bytes for tensor in tensors)
    with GGUFFile(source) as file:
        model = SourceModel(file)
        samples = _samples(model, tensors)
        estimates = FormatEstimates(
            circumstances=formats_circumstances(artifact),
            estimates=tuple(
                _estimate(model, artifact.manifest, samples, headers, weights) for weights in WeightFormat
            ),
            sampled=sum(math.prod(matrix.shape) for sample in samples for matrix in sample.matrices),
            total=sum(sample.weights for sample in samples),
        )
    artifact.record_verdict(FormatsFile, estimates)
    return estimates


@dataclass(frozen=True)
class _Sample:
    """Matrices that stand for all `weights` numbers of a kind of projection, such as `ffn_down`."""

    weights: int
    matrices: tuple[Matrix, ...]

    def added(self, weights: WeightFormat, target: Target) -> AddedError:
        """Return the error that storing adds, scaled up to all weights of the kind."""
        added = AddedError.over(
            [
                piece.added
                for matrix in self.matrices
                for choice in [choose(weights, matrix.shape[1], matrix.block_kind, target)]
                for piece in stored_pieces(matrix, choice)
            ]
        )
        scale = self.weights / sum(math.prod(matrix.shape) for matrix in self.matrices)
        return AddedError(added.squares * scale, added.squared_error * scale, added.max_error)


def _samples(model: SourceModel, tensors: Sequence[StoredTensor]) -> list[_Sample]:
    """Return all tensors of a small model, or rows from the middle of a few tensors of each kind."""
    kinds: dict[str | None, list[StoredTensor]] = {}
    for tensor in tensors:
        kinds.setdefault(kind_of(tensor.projection), []).append(tensor)
    small = sum(tensor.rows * tensor.columns for tensor in tensors) <= MAX_WEIGHTS
    samples = []
    for tensors_of_kind in kinds.values():
        last = len(tensors_of_kind) - 1
        picked = (
            tensors_of_kind
            if small
            else [tensors_of_kind[n] for n in sorted({round(last * place) for place in PLACES})]
        )
        most = MAX_WEIGHTS // len(kinds) // len(picked)
        matrices = [
            _rows(model, tensor, tensor.rows if small else most // tensor.columns) for tensor in picked
        ]
        samples.append(
            _Sample(sum(tensor.rows * tensor.columns for tensor in tensors_of_kind), tuple(matrices))
        )
    return samples


def _rows(model: SourceModel, tensor: StoredTensor, count: int) -> Matrix:
    """Return about `count` rows from the middle of a tensor, in whole groups that share a palette."""
    groups = max(1, count // GROUP_ROWS)
    count = min(tensor.rows, count if count >= tensor.rows else groups * GROUP_ROWS)
    first = tensor.first_row + (tensor.rows - count) // 2
    return model.matrix(tensor.tensor, range(first, first + count))


def _estimate(
    model: SourceModel,
    manifest: Manifest,
    samples: Sequence[_Sample],
    headers: int,
    weights: WeightFormat,
) -> FormatEstimate:
    tensors, target = manifest.tensors, manifest.target
    kinds = [block_kind(model.file, tensor.tensor) for tensor in tensors]
    choices = [
        choose(weights, tensor.columns, kind, target) for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    sizes = (
        stored_bytes(choice.encoding, (tensor.rows, tensor.columns))
        for choice, tensor in zip(choices, tensors, strict=True)
    )
    added = AddedError.over([sample.added(weights, target) for sample in samples])
    return FormatEstimate(
        weights=weights,
        bytes=headers + sum(sizes),
        relative_error=math.sqrt(added.squared_error / added.squares) if added.squares else 0.0,
        fallbacks=sum(choice.fallback is not None for choice in choices),
    )
