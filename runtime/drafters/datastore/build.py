"""Write a datastore in bounded memory; a reader sees the complete file or none."""

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
    MAX_ENTRIES,
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
"""The most entries that are sorted at a time; each takes 15 bytes of memory."""

_BUFFERED = 256
_BETWEEN = np.array([SEPARATOR], np.int32)


class Report(Protocol):
    """A callback that gets the name of the current step, and the share that is done if it is known."""

    def __call__(self, note: str, share: float | None = None, /) -> None: ...


@dataclass(frozen=True)
class TokenPart:
    """A part of a document as tokens; `begins` says whether it is the document's first part."""

    tokens: Sequence[int]
    begins: bool


@dataclass(frozen=True)
class StoredVocabulary:
    """The vocabulary of the stored tokens: its hash, and its size in tokens."""

    hash: str
    size: int


def build_datastore(
    target: Path,
    parts: Iterable[TokenPart],
    vocabulary: StoredVocabulary,
    report: Report,
    piece: int = PIECE,
) -> Header:
    """Write a datastore of these documents, and return its header.

    An existing file at `target` stays until the new one is complete. Until then the folder also holds a
    hidden file of the datastore's size, and unnamed files of half that size. `piece` is the number of entries
    to sort at a time.

    Raises:
        StorageError: the file cannot be written, for example for lack of space.
        RequestError: the documents have no tokens, or more than a datastore holds.
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
        raise RequestError("the files contain no text; pass files with text")
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
    """A writer that appends the entries of documents to a file, and cuts them into pieces.

    `bounds` are the entries at which pieces begin and end. Pieces are cut between documents. A document that
    is longer than a piece is split, as if another document began.
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
        """Append a part of the current document, or the first part of the next one."""
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
        """Write the rest, and add the last bound at the end of the text."""
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
        if self.entries + len(entries) > MAX_ENTRIES:
            raise RequestError(f"a datastore holds at most {MAX_ENTRIES:,} tokens; pass fewer files")
        self._unwritten.append(entries)
        self.entries += len(entries)
        if len(self._unwritten) > _BUFFERED:
            self._write()

    def _write(self) -> None:
        self._stream.write(np.concatenate(self._unwritten).astype("<i4", copy=False).data)
        self._unwritten = [_BETWEEN[:0]]
