"""A GGUF header field by field, so that each field can be made to lie: read from good bytes, written back.

Unlike a writer of good files it puts down what it is told: a count, a length or a rank that is not None
stands in the file in place of the true one.
"""

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
SCALAR_FORMATS = {
    UINT8: "<B", INT8: "<b", UINT16: "<H", INT16: "<h", UINT32: "<I", INT32: "<i", FLOAT32: "<f",
    BOOL: "<B", UINT64: "<Q", INT64: "<q", FLOAT64: "<d",
}  # fmt: skip
ALIGNMENT = 32


@dataclass(frozen=True)
class Text:
    """A string; `length` is what the file says of it."""

    data: bytes
    length: int | None = None

    def to_bytes(self) -> bytes:
        """The string as it stands in the file."""
        return struct.pack("<Q", len(self.data) if self.length is None else self.length) + self.data


@dataclass(frozen=True)
class Value:
    """A metadata value: its type, and its bytes after the type, for an array its items' bytes.

    `count` is what the file says of an array's length, `item` its items' type.
    """

    kind: int
    items: tuple[bytes, ...]
    item: int | None = None
    count: int | None = None

    def to_bytes(self) -> bytes:
        """The value as it stands in the file, its type first."""
        head = struct.pack("<I", self.kind)
        if self.item is not None:
            head += struct.pack("<IQ", self.item, len(self.items) if self.count is None else self.count)
        return head + b"".join(self.items)


@dataclass(frozen=True)
class Pair:
    """A metadata key and its value."""

    key: Text
    value: Value


@dataclass(frozen=True)
class Row:
    """A row of the tensor table; `dims` fastest first, `rank` is what the file says of their number."""

    name: Text
    dims: tuple[int, ...]
    kind: int
    offset: int
    rank: int | None = None

    def to_bytes(self) -> bytes:
        """The row as it stands in the file."""
        rank = len(self.dims) if self.rank is None else self.rank
        return (
            self.name.to_bytes()
            + struct.pack(f"<I{len(self.dims)}Q", rank, *self.dims)
            + struct.pack("<IQ", self.kind, self.offset)
        )


@dataclass(frozen=True)
class Form:
    """A whole file but for its tensors' data, of which only the length is known.

    `tensor_count` and `key_count` are what the head says.
    """

    pairs: tuple[Pair, ...] = ()
    rows: tuple[Row, ...] = ()
    data_bytes: int = 0
    version: int = 3
    magic: bytes = b"GGUF"
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = field(default=ALIGNMENT)

    def header(self) -> bytes:
        """Everything before the data, padding included."""
        tensors = len(self.rows) if self.tensor_count is None else self.tensor_count
        keys = len(self.pairs) if self.key_count is None else self.key_count
        parts = [self.magic, struct.pack("<IQQ", self.version, tensors, keys)]
        for pair in self.pairs:
            parts += (pair.key.to_bytes(), pair.value.to_bytes())
        parts += (row.to_bytes() for row in self.rows)
        head = b"".join(parts)
        return head + bytes(-len(head) % self.alignment)

    def value(self, key: str) -> Value | None:
        """The value under `key`."""
        return next((pair.value for pair in self.pairs if pair.key.data == key.encode()), None)

    def with_value(self, key: str, value: Value | None) -> "Form":
        """This form with another value under `key`, at its end where it was not there; None takes it out."""
        kept = [pair for pair in self.pairs if pair.key.data != key.encode()]
        if value is None:
            return replace(self, pairs=tuple(kept))
        new = Pair(Text(key.encode()), value)
        if len(kept) == len(self.pairs):
            return replace(self, pairs=(*self.pairs, new))
        return replace(
            self, pairs=tuple(new if pair.key.data == key.encode() else pair for pair in self.pairs)
        )

    def with_row(self, name: str, **changes: object) -> "Form":
        """This form with the tensor's row changed."""
        rows = [
            replace(row, **changes) if row.name.data == name.encode() else row  # type: ignore[arg-type]
            for row in self.rows
        ]
        return replace(self, rows=tuple(rows))


def scalar(kind: int, value: float) -> Value:
    """A number or a truth value."""
    return Value(kind, (struct.pack(SCALAR_FORMATS[kind], value),))


def string(value: str | bytes, length: int | None = None) -> Value:
    """A string value."""
    data = value.encode() if isinstance(value, str) else value
    return Value(STRING, (Text(data, length).to_bytes(),))


def strings(values: list[str] | list[bytes]) -> Value:
    """An array of strings."""
    items = [value.encode() if isinstance(value, str) else value for value in values]
    return Value(ARRAY, tuple(Text(item).to_bytes() for item in items), STRING)


def numbers(kind: int, values: list[float] | list[int]) -> Value:
    """An array of numbers."""
    return Value(ARRAY, tuple(struct.pack(SCALAR_FORMATS[kind], value) for value in values), kind)


def texts_of(value: Value) -> list[bytes]:
    """The strings of an array of strings."""
    return [item[8:] for item in value.items]


def read_form(path: Path) -> Form:
    """The form of a good file, version 2 or 3, its rows with data of whatever type."""
    return _Reader(path.read_bytes()).form()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.place : self.place + size]
        assert len(piece) == size, "only good files are read"
        self.place += size
        return piece

    def number(self, code: str) -> int:
        return int(struct.unpack(code, self.take(struct.calcsize(code)))[0])

    def text(self) -> Text:
        return Text(self.take(self.number("<Q")))

    def value(self) -> Value:
        kind = self.number("<I")
        if kind != ARRAY:
            return Value(kind, (self.item(kind),))
        item, count = self.number("<I"), self.number("<Q")
        return Value(ARRAY, tuple(self.item(item) for _ in range(count)), item)

    def item(self, kind: int) -> bytes:
        return self.text().to_bytes() if kind == STRING else self.take(struct.calcsize(SCALAR_FORMATS[kind]))

    def row(self) -> Row:
        name, rank = self.text(), self.number("<I")
        dims = tuple(self.number("<Q") for _ in range(rank))
        return Row(name, dims, self.number("<I"), self.number("<Q"))

    def form(self) -> Form:
        magic, version = self.take(4), self.number("<I")
        tensors, keys = self.number("<Q"), self.number("<Q")
        pairs = tuple(Pair(self.text(), self.value()) for _ in range(keys))
        rows = tuple(self.row() for _ in range(tensors))
        start = -(-self.place // ALIGNMENT) * ALIGNMENT
        return Form(pairs, rows, max(0, len(self.data) - start), version, magic)
