"""Writing a datastore: in bounded memory, and so that a reader sees a whole file or none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from anespec import __version__
from anespec.runtime.drafters.datastore.sorting import merge_runs, sorted_places
from anespec.runtime.drafters.datastore.stored import (
    MOST_ENTRIES,
    SEPARATOR,
    Header,
    Order,
    let_go,
    map_array,
    text_begin,
)
from anespec.system.errors import RequestError, StorageError
from anespec.system.safe_files import Folder

PIECE = 8_000_000
"""Entries that are sorted at a time; it takes 15 bytes of memory for each."""

_BUFFERED = 256
_BETWEEN = np.array([SEPARATOR], np.int32)


class Report(Protocol):
    """Hears what is being done, and the share done where that is known."""

    def __call__(self, note: str, share: float | None = None, /) -> None: ...


@dataclass(frozen=True)
class TokenPart:
    """A part of a document as tokens; `begins` says whether it is its first."""

    tokens: Sequence[int]
    begins: bool


@dataclass(frozen=True)
class StoredVocabulary:
    """Whose tokens are stored: the hash of all, and how many there are."""

    hash: str
    size: int


def build_datastore(
    target: Path,
    parts: Iterable[TokenPart],
    vocabulary: StoredVocabulary,
    report: Report,
    piece: int = PIECE,
) -> Header:
    """Write a datastore of these documents; an existing file at `target` stays until the new one is complete.

    Meanwhile the folder also holds a hidden file of that size, and unnamed files of half that size.

    Raises:
        StorageError: the file system refuses, for example for lack of space.
        RequestError: there is nothing to store, or too much.
    """
    try:
        with (
            Folder.open(target.parent) as folder,
            folder.replacing(target.name) as stream,
            TemporaryFile(dir=target.parent) as runs,
        ):
            return _write(stream, runs, parts, vocabulary, report, piece)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written ({error.strerror})") from error


def _write(
    stream: BinaryIO,
    runs: IO[bytes],
    parts: Iterable[TokenPart],
    vocabulary: StoredVocabulary,
    report: Report,
    piece: int,
) -> Header:
    stream.seek(text_begin(vocabulary.size))
    writer = _TextWriter(stream, piece)
    for part in parts:
        writer.add(part)
    writer.end()
    if not writer.tokens:
        raise RequestError("the files hold no text; pass some that do")
    stream.flush()
    text = map_array(stream.fileno(), "<i4", writer.entries, text_begin(vocabulary.size))
    lengths = []
    for begin, end in pairwise(writer.bounds):
        report("sorting", begin / writer.entries)
        order = sorted_places(text, begin, end + 1, vocabulary.size)
        let_go(text)
        runs.write(order.astype("<i4", copy=False).data)
        lengths.append(len(order))
    runs.flush()
    places = sum(lengths)
    merged = 0

    def write(order: Order) -> None:
        nonlocal merged
        merged += len(order)
        stream.write(order.astype("<i4", copy=False).data)
        report("merging", merged / places)
        let_go(order_of_runs)

    order_of_runs = map_array(runs.fileno(), "<i4", places, 0)
    starts = merge_runs(text, order_of_runs, lengths, vocabulary.size, write)
    header = Header(
        vocabulary=vocabulary.hash,
        vocabulary_size=vocabulary.size,
        documents=writer.documents,
        tokens=writer.tokens,
        entries=writer.entries,
        places=places,
        made_with=__version__,
    )
    stream.seek(0)
    stream.write(header.packed())
    stream.write(starts.astype("<i8", copy=False).data)
    return header


class _TextWriter:
    """Appends entries to a file and knows where pieces may be cut: between documents alone.

    A document that is longer than a piece is cut there, as if another began.
    """

    def __init__(self, stream: BinaryIO, piece: int) -> None:
        self._stream = stream
        self._piece = piece
        self._has_tokens = False  # whether the last document has any
        self._unwritten: list[NDArray[np.int32]] = []
        self.tokens = 0
        self.documents = 0
        self.entries = 0
        self.bounds = [0]
        self._put(_BETWEEN)

    def add(self, part: TokenPart) -> None:
        """A document goes on, or another begins."""
        if part.begins:
            self._separate()
        tokens = np.array(part.tokens, np.int32)
        while len(tokens):
            room = self._piece - (self.entries - 1 - self.bounds[-1])
            if room <= 0:
                self._separate()
                room = self._piece
            self.documents += not self._has_tokens
            self._has_tokens = True
            self.tokens += len(tokens[:room])
            self._put(tokens[:room])
            tokens = tokens[room:]

    def end(self) -> None:
        """That was all; a bound is where the text ends."""
        self._separate()
        if self.bounds[-1] != self.entries - 1:
            self.bounds.append(self.entries - 1)
        self._write()

    def _separate(self) -> None:
        if self._has_tokens:
            self._put(_BETWEEN)
            self._has_tokens = False
            if self.entries - 1 - self.bounds[-1] >= self._piece:
                self.bounds.append(self.entries - 1)

    def _put(self, entries: NDArray[np.int32]) -> None:
        if self.entries + len(entries) > MOST_ENTRIES:
            raise RequestError(f"a datastore holds {MOST_ENTRIES} tokens at most; pass fewer files")
        self._unwritten.append(entries)
        self.entries += len(entries)
        if len(self._unwritten) > _BUFFERED:
            self._write()

    def _write(self) -> None:
        self._stream.write(np.concatenate(self._unwritten).astype("<i4", copy=False).data)
        self._unwritten = [_BETWEEN[:0]]
