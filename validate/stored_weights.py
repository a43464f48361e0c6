"""The projections of an artifact as its shards hold them, for the reference to compute with.

The golden gate asks two things apart, so that the error of a small weight format cannot hide a bug: are the
stored numbers what the GGUF says, as near as the manifest claims; and does a shard compute what its stored
numbers mean. What parts of a weight stand for is written out here once more, after Core ML's definitions, and
so is the order of rows.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import ArtifactError
from anespec.manifests.gguf_file import GGUFFile
from anespec.manifests.schema import Manifest, Shard, StoredTensor
from anespec.manifests.store import Artifact
from anespec.manifests.wording import quoted
from anespec.runtime.backends.portable.packed import Packed
from anespec.runtime.backends.portable.program import Operation, Program, load_program
from anespec.validate.figures import WeightFigures

ROWS_AT_ONCE = 4096

Rows = NDArray[np.float32]
RowNumbers = NDArray[np.intp]


class StoredWeights:
    """An artifact's projections by their names in the GGUF, float32, rows in the GGUF's order."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._programs: dict[str, Program] = {}
        self._places: dict[str, list[tuple[Shard, StoredTensor]]] = {}
        for shard in artifact.manifest.shards:
            for tensor in shard.tensors:
                self._places.setdefault(tensor.tensor, []).append((shard, tensor))

    def rows(self, name: str, rows: slice | None = None) -> Rows:
        """Rows of the tensor `name`, all of them where `rows` is None: (rows, in).

        Raises:
            ArtifactError: the artifact does not hold all of them, or is damaged.
        """
        places = self._places.get(name, [])
        count = max((tensor.first_row + tensor.rows for _, tensor in places), default=0)
        wanted = range(count)[rows if rows is not None else slice(None)]
        found = np.full((len(wanted), places[0][1].columns if places else 0), np.nan, np.float32)
        for shard, tensor in places:
            order = file_rows(tensor, self.artifact.manifest)
            stored = np.flatnonzero((order >= wanted.start) & (order < wanted.stop))
            if stored.size:
                found[order[stored] - wanted.start] = self._stored(shard, tensor, stored)
        if not found.size or np.isnan(found).any():
            raise ArtifactError(
                f"{self.artifact.root}: does not hold all of {quoted(name)}; convert the model again"
            )
        return found

    def require_shapes(self, file: GGUFFile) -> None:
        """Do nothing where the manifest lists all rows of tensors that the GGUF has, each once.

        Raises:
            ArtifactError: it does not; nothing that it says of them can be read then.
        """
        for name, places in self._places.items():
            listed = (sum(tensor.rows for _, tensor in places), {tensor.columns for _, tensor in places})
            rows, columns = file.tensors[name].shape if name in file.tensors else (0, 0)
            last = max(tensor.first_row + tensor.rows for _, tensor in places)
            if listed != (rows, {columns}) or last != rows:
                raise ArtifactError(
                    f"{self.artifact.root}: does not hold all of {quoted(name)}; convert the model again"
                )

    def against(self, file: GGUFFile) -> Iterator[WeightFigures]:
        """Every stored tensor beside the GGUF's own numbers."""
        for shard in self.artifact.manifest.shards:
            for tensor in shard.tensors:
                order = file_rows(tensor, self.artifact.manifest)
                squares = errors = 0.0
                for first in range(0, tensor.rows, ROWS_AT_ONCE):
                    some = np.arange(first, min(first + ROWS_AT_ONCE, tensor.rows))
                    expected = file.rows(tensor.tensor, order[some])
                    difference = (self._stored(shard, tensor, some) - expected).reshape(-1)
                    squares += float(np.dot(expected.reshape(-1), expected.reshape(-1)))
                    errors += float(np.dot(difference, difference))
                yield WeightFigures(
                    shard=shard.path,
                    projection=tensor.projection,
                    tensor=tensor.tensor,
                    weights=tensor.weights,
                    claimed=tensor.relative_error,
                    error=float(np.sqrt(errors / squares)) if squares else float(errors > 0),
                )

    def _stored(self, shard: Shard, tensor: StoredTensor, rows: RowNumbers) -> Rows:
        if shard.path not in self._programs:
            self._programs[shard.path] = load_program(self.artifact.shard_path(shard))
        try:
            values = stored_rows(self._programs[shard.path], tensor.projection, rows)
        except (KeyError, IndexError, StopIteration, ValueError) as error:
            raise ArtifactError(
                f"{self.artifact.root}: {shard.path} holds no weight of {tensor.projection} as the manifest "
                f"describes it ({error}); convert the model again"
            ) from None
        return values


def file_rows(tensor: StoredTensor, manifest: Manifest) -> RowNumbers:
    """For every stored row its number in the GGUF's tensor."""
    numbers = np.arange(tensor.rows)
    if tensor.pairs_parted:
        head, place = np.divmod(numbers, manifest.hyperparameters.head_dim)
        half = len(manifest.ropes[0].frequencies)
        turned = np.where(place < half, 2 * place, 2 * (place - half) + 1)
        numbers = head * manifest.hyperparameters.head_dim + np.where(place < 2 * half, turned, place)
    return tensor.first_row + numbers


def stored_rows(program: Program, projection: str, rows: RowNumbers) -> Rows:
    """Rows of the weight of the convolution `projection`, (rows, in) in float32.

    scale * (data - offset), each scale and offset for a block along the row; or palette[index], each
    palette for a group of rows.
    """
    conv = next(op for op in program.operations if op.kind == "conv" and op.outputs == (projection,))
    weight = conv.inputs["weight"][0]
    if weight in program.constants:
        return _part(program, weight)[rows].astype(np.float32)
    made = next(op for op in program.operations if weight in op.outputs)
    parts = {key: _part(program, made.inputs[key][0]) for key in _array_inputs(made)}
    if made.kind == "constexpr_lut_to_dense":
        indices, palettes = parts["indices"], parts["lut"]
        groups = rows // (len(indices) // len(palettes))
        found: Rows = np.take_along_axis(palettes[groups], indices[rows].astype(np.intp), axis=1)
        return found.astype(np.float32)
    data, scale = parts["data"][rows].astype(np.float32), parts["scale"][rows].astype(np.float32)
    blocks = data.reshape(*scale.shape, -1)
    if "offset" in parts:
        blocks -= parts["offset"][rows].astype(np.float32)[..., None]
    blocks *= scale[..., None]
    return data


def _array_inputs(made: Operation) -> tuple[str, ...]:
    return tuple(key for key in ("data", "scale", "offset", "indices", "lut") if key in made.inputs)


def _part(program: Program, name: str) -> NDArray[Any]:
    """A constant as (first axis, everything else)."""
    value = program.constants[name]
    if isinstance(value, str):
        raise ValueError(f"{name} is a string")
    array = value.unpacked() if isinstance(value, Packed) else value
    return array.reshape(len(array), -1)
