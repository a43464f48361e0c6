"""A projection on its way into a shard: stored piece by piece, with what storing it added."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anespec.convert.weights.encoding import (
    Floats,
    Part,
    Parts,
    Piece,
    Source,
    extremes_of,
    require_fp16_range,
    stored_bytes,
)
from anespec.convert.weights.formats import Choice, choose
from anespec.manifests.schema import StoredTensor, WeightFormat

PIECE_ELEMENTS = 1 << 18
"""1 MB of float32: a piece stays in a core's cache."""


@dataclass(frozen=True)
class StoredWeight:
    """The constants of a stored matrix by the names of their parts, and what storing it added."""

    parts: Parts
    added: "AddedError"


@dataclass(frozen=True)
class AddedError:
    """Sums over a matrix: the source's numbers squared, the errors of storing squared, the largest error."""

    squares: float
    squared_error: float
    max_error: float

    @classmethod
    def between(cls, values: Floats, stored: Floats) -> "AddedError":
        """The error of `stored`, whose memory is used for the differences."""
        stored -= values
        return cls(
            squares=float(np.vecdot(values, values).sum(dtype=np.float64)),
            squared_error=float(np.vecdot(stored, stored).sum(dtype=np.float64)),
            max_error=max(float(stored.max()), -float(stored.min())),
        )


@dataclass(frozen=True)
class DeferredWeight:
    """A projection that is read and stored only when its shard is written.

    `on_stored` is told what became of it, once it is.
    """

    source: Source
    asked: WeightFormat
    on_stored: Callable[[StoredTensor], None] = lambda _: None

    @cached_property
    def choice(self) -> Choice:
        """How it is stored."""
        return choose(self.asked, self.source.shape[1], self.source.kind)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The constants that it becomes."""
        return self.choice.encoding.parts(self.source.shape)

    def load(self, projection: str) -> Parts:
        """Read and store it for the convolution called `projection`; nothing keeps the result.

        Raises:
            GGUFError: a value is not finite or cannot be read.
            UnsupportedModelError: a value is beyond fp16's range.
        """
        stored = store(self.source, self.choice)
        self.source.forget()
        self.on_stored(self._entry(projection, stored.added))
        return stored.parts

    def _entry(self, projection: str, added: AddedError) -> StoredTensor:
        source, encoding, order = self.source, self.choice.encoding, self.source.order
        return StoredTensor(
            projection=projection,
            tensor=source.name,
            first_row=int(order.min()),
            rows=source.shape[0],
            columns=source.shape[1],
            pairs_parted=bool((np.diff(order) != 1).any()),
            source_type=source.kind.name,
            weights=encoding.weight_format,
            fallback=self.choice.fallback,
            lossless=encoding.lossless or added.max_error == 0,
            bytes=stored_bytes(encoding, source.shape),
            squares=added.squares,
            squared_error=added.squared_error,
            max_error=added.max_error,
        )


def store(source: Source, choice: Choice) -> StoredWeight:
    """Bring a matrix into the parts of its encoding, a few rows at a time.

    Pieces are small enough to stay in a core's cache from the source's blocks to the stored bytes, and
    cores share them out.

    Raises:
        UnsupportedModelError: a value is beyond fp16's range.
    """
    encoding, (count, width) = choice.encoding, source.shape
    multiple = encoding.row_multiple(source.shape)
    step = max(1, PIECE_ELEMENTS // (width * multiple)) * multiple
    pieces = [slice(first, min(first + step, count)) for first in range(0, count, step)]
    parts = {part.name: np.empty(part.shape, part.element.dtype) for part in encoding.parts(source.shape)}

    def convert(rows: slice) -> AddedError:
        values = source.rows(rows)
        extremes = extremes_of(values)
        require_fp16_range(extremes, source.name)
        piece = Piece(values, extremes, lambda: source.blocks(rows))
        stored = encoding.encode(piece, _shares(parts, rows, count))
        return AddedError.between(values, stored)

    with ThreadPoolExecutor() as pool:
        added = list(pool.map(convert, pieces))
    total = AddedError(
        squares=math.fsum(piece.squares for piece in added),
        squared_error=math.fsum(piece.squared_error for piece in added),
        max_error=max(piece.max_error for piece in added),
    )
    return StoredWeight(parts, total)


def _shares(parts: Parts, rows: slice, count: int) -> Parts:
    """What belongs to some of `count` rows: of each part, an array with one row per row or group of rows."""
    shares = {}
    for name, array in parts.items():
        held = len(array)
        first, end = rows.start * held // count, rows.stop * held // count
        shares[name] = array[first:end].reshape(end - first, -1)
    return shares
