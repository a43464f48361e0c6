"""Read the projections of an artifact as its shards store them, for the reference to compute with.

The golden gate checks two things separately, so that the error of a small weight format cannot hide a bug:
whether the stored numbers are as close to the GGUF's as the manifest claims, and whether a shard computes the
function of its stored numbers. The decoding of weights is implemented independently here, after Core ML's
definitions, and so is the order of rows. Both checks need the same numbers, so rows that are read for the
second are compared for the first at the same time.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from anespec.convert.source.matrix import scaled_rows
from anespec.gguf.container import GGUFFile
from anespec.gguf.element_types import ElementType
from anespec.manifests.schema import Manifest, RopeRows, Shard, StoredTensor
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.mil_package import Packed
from anespec.runtime.backends.portable.program import Operation, Program, load_program
from anespec.system.errors import ArtifactError
from anespec.system.formatting import quoted
from anespec.validate.golden.figures import WeightFigures

NUMBERS_AT_ONCE = 1 << 18
"""The weights that a thread dequantises and compares at once; they fit a core's cache."""

Floats = NDArray[np.float32]
RowNumbers = NDArray[np.intp]


@dataclass
class _Piece:
    """A stored tensor, and the sums of its comparison with the GGUF so far."""

    shard: Shard
    tensor: StoredTensor
    manifest: Manifest
    squares: float = 0.0
    errors: float = 0.0

    @cached_property
    def order(self) -> RowNumbers:
        """Return the row number in the GGUF's tensor of every stored row."""
        return file_rows(self.tensor, self.manifest)

    @cached_property
    def compared(self) -> NDArray[np.bool_]:
        """Return which stored rows were compared."""
        return np.zeros(self.tensor.rows, np.bool_)

    def figures(self) -> WeightFigures:
        """Return the result of the comparison."""
        error = float(np.sqrt(self.errors / self.squares)) if self.squares else float(self.errors > 0)
        return WeightFigures(
            shard=self.shard.path,
            projection=self.tensor.projection,
            tensor=self.tensor.tensor,
            weights=self.tensor.weights,
            claimed=self.tensor.relative_error,
            error=error,
        )


class StoredWeights:
    """An artifact's projections by their names in the GGUF, float32, rows in the GGUF's order."""

    def __init__(self, artifact: Artifact, source: GGUFFile, threads: int = 1) -> None:
        """Read from `artifact`; rows are compared with those of `source` when they are first read.

        `source` must stay open meanwhile.
        """
        self.artifact = artifact
        self._source = source
        self._threads = threads
        self._programs: dict[str, Program] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        for shard in artifact.manifest.shards:
            for tensor in shard.tensors:
                piece = _Piece(shard, tensor, artifact.manifest)
                self._pieces.setdefault(tensor.tensor, []).append(piece)

    def rows(self, name: str, rows: slice | None = None) -> Floats:
        """Return rows of the tensor `name` as (rows, in), all of them if `rows` is None.

        Raises:
            ArtifactError: the artifact does not hold all of them, or is damaged.
        """
        pieces = self._pieces.get(name, [])
        count = max((piece.tensor.first_row + piece.tensor.rows for piece in pieces), default=0)
        wanted = range(count)[rows if rows is not None else slice(None)]
        found = np.empty((len(wanted), pieces[0].tensor.columns if pieces else 0), np.float32)
        held = np.zeros(len(wanted), np.bool_)
        for piece in pieces:
            first = piece.tensor.first_row
            if first >= wanted.stop or first + piece.tensor.rows <= wanted.start:
                continue
            stored = np.flatnonzero((piece.order >= wanted.start) & (piece.order < wanted.stop))
            if stored.size:
                self._read(piece, stored, found, wanted.start)
                held[piece.order[stored] - wanted.start] = True
        if not found.size or not held.all():
            raise self._not_whole(name)
        return found

    def require_shapes(self) -> None:
        """Require that the manifest lists every row of tensors of the GGUF exactly once.

        Raises:
            ArtifactError: it does not, so the tensors cannot be read.
        """
        for name, pieces in self._pieces.items():
            tensors = [piece.tensor for piece in pieces]
            listed = (sum(tensor.rows for tensor in tensors), {tensor.columns for tensor in tensors})
            info = self._source.tensors.get(name)
            *counts, columns = (0, 0) if info is None else info.shape
            rows = prod(counts)
            last = max(tensor.first_row + tensor.rows for tensor in tensors)
            if listed != (rows, {columns}) or last != rows:
                raise self._not_whole(name)

    def figures(self) -> Iterator[WeightFigures]:
        """Yield the comparison of every stored tensor with the GGUF.

        Rows that were not read yet are read now.
        """
        for piece in (piece for pieces in self._pieces.values() for piece in pieces):
            self._read(piece, np.flatnonzero(~piece.compared))
            yield piece.figures()

    def _read(
        self, piece: _Piece, stored: RowNumbers, found: Floats | None = None, first_wanted: int = 0
    ) -> None:
        """Compare stored rows that were not compared yet, and write all of them to `found`.

        The first row of `found` is the GGUF's row `first_wanted`.
        """
        if not stored.size:
            return
        shard, tensor = piece.shard, piece.tensor
        if shard.path not in self._programs:
            self._programs[shard.path] = load_program(self.artifact.shard_path(shard))
        at_once = max(1, NUMBERS_AT_ONCE // max(1, tensor.columns))

        def read(some: RowNumbers) -> tuple[float, float]:
            values, places = weight.rows(some), piece.order[some]
            if np.isnan(values).any():
                raise ValueError("it holds values that are not numbers")
            if found is not None:
                found[places - first_wanted] = values
            new = ~piece.compared[some]
            if not new.any():
                return 0.0, 0.0
            if not new.all():
                values, places = values[new], places[new]
            expected = scaled_rows(self._source, tensor.tensor, places).reshape(-1)
            difference = values.reshape(-1) - expected
            return float(np.dot(expected, expected)), float(np.dot(difference, difference))

        try:
            weight = stored_weight(self._programs[shard.path], tensor.projection)
            with ThreadPoolExecutor(self._threads) as pool:
                parts = range(0, len(stored), at_once)
                sums = list(pool.map(read, (stored[first : first + at_once] for first in parts)))
        except (KeyError, IndexError, StopIteration, ValueError) as error:
            raise ArtifactError(
                f"{self.artifact.root}: {shard.path} holds no weight of {tensor.projection} as the manifest "
                f"describes it ({error}); convert the model again"
            ) from None
        piece.squares += sum(squares for squares, _ in sums)
        piece.errors += sum(errors for _, errors in sums)
        piece.compared[stored] = True

    def _not_whole(self, name: str) -> ArtifactError:
        return ArtifactError(
            f"{self.artifact.root}: does not hold all of {quoted(name)}; convert the model again"
        )


def file_rows(tensor: StoredTensor, manifest: Manifest) -> RowNumbers:
    """Return the row number in the GGUF's tensor of every stored row."""
    numbers = np.arange(tensor.rows)
    if tensor.rope_permuted:
        rows = tensor.rope_rows or RopeRows(head=manifest.hyperparameters.head_dim, first=0)
        head, place = np.divmod(numbers, rows.head)
        place -= rows.first
        half = len(manifest.ropes[0].frequencies)
        turned = np.where(place < half, 2 * place, 2 * (place - half) + 1)
        turns = (place >= 0) & (place < 2 * half)
        numbers = head * rows.head + rows.first + np.where(turns, turned, place)
    return tensor.first_row + numbers


class StoredWeight(Protocol):
    """The weight of one convolution, decoded from its stored parts."""

    def rows(self, rows: RowNumbers) -> Floats:
        """Return some of its rows as float32 (rows, in).

        Raises:
            IndexError: it has no such rows.
        """
        ...


@dataclass(frozen=True)
class _Plain:
    weight: "_Part"

    def rows(self, rows: RowNumbers) -> Floats:
        return self.weight.rows(rows).astype(np.float32)


@dataclass(frozen=True)
class _Linear:
    """scale * (data - offset), with a scale and an offset for each block along the row."""

    data: "_Part"
    scale: "_Part"
    offset: "_Part | None"

    def rows(self, rows: RowNumbers) -> Floats:
        data: Floats = self.data.rows(rows).astype(np.float32)
        scale = self.scale.rows(rows).astype(np.float32)
        blocks = data.reshape(*scale.shape, -1)
        if self.offset is not None:
            blocks -= self.offset.rows(rows).astype(np.float32)[..., None]
        blocks *= scale[..., None]
        return data


@dataclass(frozen=True)
class _Palettised:
    """palette[index], with a palette for each group of consecutive rows; `palettes` are (groups, entries)."""

    indices: "_Part"
    palettes: Floats

    def rows(self, rows: RowNumbers) -> Floats:
        groups, entries = self.palettes.shape
        numbers = self.indices.rows(rows).astype(np.intp)
        if numbers.max(initial=0) >= entries:
            raise IndexError("an index lies outside its palette")
        numbers += (rows // (self.indices.count // groups) * entries)[:, None]
        return self.palettes.reshape(-1).take(numbers)


def stored_weight(program: Program, projection: str) -> StoredWeight:
    """Return the weight of the convolution `projection`.

    Raises:
        KeyError, StopIteration, ValueError: the program has no such weight with known parts.
    """
    conv = next(op for op in program.operations if op.kind == "conv" and op.outputs == (projection,))
    weight = conv.inputs["weight"][0]
    if weight in program.constants:
        return _Plain(_Part.of(program, weight))
    made = next(op for op in program.operations if weight in op.outputs)
    parts = {key: _Part.of(program, made.inputs[key][0]) for key in _array_inputs(made)}
    if made.kind == "constexpr_lut_to_dense":
        palettes = parts["lut"]
        return _Palettised(parts["indices"], palettes.rows(np.arange(palettes.count)).astype(np.float32))
    return _Linear(parts["data"], parts["scale"], parts.get("offset"))


def _array_inputs(made: Operation) -> tuple[str, ...]:
    return tuple(key for key in ("data", "scale", "offset", "indices", "lut") if key in made.inputs)


@dataclass(frozen=True)
class _Part:
    """A constant as (first axis, everything else): numbers, or the bytes of rows of `packed` numbers."""

    data: NDArray[Any]
    packed: ElementType | None = None

    @classmethod
    def of(cls, program: Program, name: str) -> Self:
        value = program.constants[name]
        if isinstance(value, str):
            raise ValueError(f"{name} is a string")
        count = value.shape[0]
        if not isinstance(value, Packed):
            return cls(value.reshape(count, -1))
        if prod(value.shape[1:]) * value.element.bits % 8:
            return cls(value.unpacked().reshape(count, -1))
        return cls(value.data.reshape(count, -1), value.element)

    @property
    def count(self) -> int:
        return len(self.data)

    def rows(self, rows: RowNumbers) -> NDArray[Any]:
        if rows.size and rows.max() >= len(self.data):
            raise IndexError(f"it has {len(self.data)} rows")
        consecutive = rows.size and (np.diff(rows) == 1).all()
        data = self.data[slice(rows[0], rows[-1] + 1) if consecutive else rows]
        if self.packed is None:
            return data
        columns = data.shape[1] * 8 // self.packed.bits
        return Packed(data.reshape(-1), self.packed, (len(data), columns)).unpacked()
