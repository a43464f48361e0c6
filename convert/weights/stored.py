"""Store a projection piece by piece, and measure the error that storing adds."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.convert.weights.encoding import (
    Floats,
    Part,
    Parts,
    Piece,
    SourceMatrix,
    extremes_of,
    require_fp16_range,
    squares_of_rows,
    stored_bytes,
)
from anespec.convert.weights.formats import Choice, choose
from anespec.manifests.schema import StoredTensor, Target, WeightFormat

PIECE_ELEMENTS = 1 << 18
"""Elements of a piece, 1 MB of float32, so that it stays in a core's cache."""
ROWS_OF_WHOLE_BYTES = 8
"""A number of rows that fills whole bytes for any width and any bits per number."""


@dataclass(frozen=True)
class StoredWeight:
    """The constants of a matrix, or of some of its rows, by part, and the error that storing added."""

    parts: Parts
    added: "AddedError"


@dataclass(frozen=True)
class AddedError:
    """The error that storing added: the sums of squared weights and squared errors, and the largest error."""

    squares: float
    squared_error: float
    max_error: float

    @classmethod
    def between(cls, values: Floats, stored: Floats) -> "AddedError":
        """Return the error of `stored`; the array is overwritten with the differences."""
        stored -= values
        return cls(
            squares=float(squares_of_rows(values).sum(dtype=np.float64)),
            squared_error=float(squares_of_rows(stored).sum(dtype=np.float64)),
            max_error=max(float(stored.max()), -float(stored.min())),
        )

    @classmethod
    def over(cls, pieces: Sequence["AddedError"]) -> "AddedError":
        """Return the error over all pieces of a matrix."""
        return cls(
            squares=math.fsum(piece.squares for piece in pieces),
            squared_error=math.fsum(piece.squared_error for piece in pieces),
            max_error=max(piece.max_error for piece in pieces),
        )


@dataclass(frozen=True, eq=False)
class DeferredWeight:
    """A projection that is read and stored only when its shard is written. It is compared by identity.

    `on_stored` gets the manifest's entry for it afterwards.
    """

    source: SourceMatrix
    asked: WeightFormat
    on_stored: Callable[[StoredTensor], None] = lambda _: None
    target: Target = Target.CPU

    @cached_property
    def choice(self) -> Choice:
        """The encoding of the projection."""
        return choose(self.asked, self.source.shape[1], self.source.block_kind, self.target)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The constants of the stored projection."""
        return self.choice.encoding.parts(self.source.shape)

    def pieces(self, projection: str, threads: int) -> Iterator[Parts]:
        """Read and store the weight of the convolution `projection`; yield its parts, some rows at a time.

        Raises:
            GGUFError: a value is not finite or cannot be read.
            UnsupportedModelError: a value is beyond fp16's range.
        """
        added = []
        for piece in stored_pieces(self.source, self.choice, threads):
            added.append(piece.added)
            yield piece.parts
        self.source.forget()
        self.on_stored(self._entry(projection, AddedError.over(added)))

    def _entry(self, projection: str, added: AddedError) -> StoredTensor:
        source, encoding, order = self.source, self.choice.encoding, self.source.order
        return StoredTensor(
            projection=projection,
            tensor=source.name,
            first_row=int(order.min()),
            rows=source.shape[0],
            columns=source.shape[1],
            rope_permuted=bool((np.diff(order) != 1).any()),
            rope_rows=source.rope_rows,
            source_type=source.kind.name,
            weights=encoding.weight_format,
            fallback=self.choice.fallback,
            lossless=encoding.lossless or added.max_error == 0,
            bytes=stored_bytes(encoding, source.shape),
            squares=added.squares,
            squared_error=added.squared_error,
            max_error=added.max_error,
        )


def stored_pieces(source: SourceMatrix, choice: Choice, threads: int = 1) -> Iterator[StoredWeight]:
    """Encode a matrix, and yield the parts of a few rows at a time, in order.

    A piece stays in a core's cache from the source's blocks to the stored bytes. Its sections of the parts
    fill whole bytes, except for the last piece.

    Raises:
        UnsupportedModelError: a value is beyond fp16's range.
    """
    encoding, (count, width) = choice.encoding, source.shape
    multiple = math.lcm(encoding.row_multiple(source.shape), ROWS_OF_WHOLE_BYTES)
    step = max(1, PIECE_ELEMENTS // (width * multiple)) * multiple
    described = encoding.parts(source.shape)

    def convert(first: int) -> StoredWeight:
        rows = slice(first, min(first + step, count))
        values = source.rows(rows)
        extremes = extremes_of(values)
        require_fp16_range(extremes, source.name)
        piece = Piece(values, extremes, lambda: source.blocks(rows))
        parts = {part.name: _share(part, len(values), count) for part in described}
        flat = {name: array.reshape(len(array), -1) for name, array in parts.items()}
        return StoredWeight(parts, AddedError.between(values, encoding.encode(piece, flat)))

    return _in_order(convert, range(0, count, step), threads)


def store(source: SourceMatrix, choice: Choice) -> StoredWeight:
    """Encode a whole matrix at once; see `stored_pieces`."""
    pieces = list(stored_pieces(source, choice))
    names = pieces[0].parts
    parts = {name: np.concatenate([piece.parts[name] for piece in pieces]) for name in names}
    return StoredWeight(parts, AddedError.over([piece.added for piece in pieces]))


def _share(part: Part, rows: int, count: int) -> NDArray[Any]:
    """Return an empty array for the section of a part that belongs to `rows` of the matrix's `count` rows."""
    held, *rest = part.shape
    return np.empty((held * rows // count, *rest), part.element.dtype)


def _in_order(
    convert: Callable[[int], StoredWeight], firsts: Sequence[int], threads: int
) -> Iterator[StoredWeight]:
    """Convert with the given number of threads, only a few results ahead of the consumer."""
    if threads == 1:
        yield from map(convert, firsts)
        return
    waiting: deque[Future[StoredWeight]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for first in firsts:
            waiting.append(pool.submit(convert, first))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
