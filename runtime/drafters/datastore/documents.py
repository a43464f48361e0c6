"""Read the documents of the files that a datastore is built from, and estimate the datastore's size."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from anespec.runtime.drafters.datastore.stored import MAX_ENTRIES, text_begin
from anespec.system.errors import RequestError, StorageError
from anespec.system.formatting import bytes_text, printable
from anespec.system.safe_files import open_file

BLOCK = 1 << 16
"""The number of characters that are read and tokenized at a time."""

LONGEST_LINE = 1 << 26
"""The most characters of one line of JSONL."""

_LINES = (".jsonl", ".ndjson")
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Part:
    """A part of a document.

    `begins` says whether it is the document's first part; `read` is the number of bytes of the file read so
    far.
    """

    text: str
    begins: bool
    read: int


def parts_of(path: Path) -> Iterator[Part]:
    """Yield the documents of a file, in parts.

    Each line of a JSONL file is one document, a JSON string or an object with `text` or `content`, or an
    object with `messages`, each of which is one document. Any other file is one document.

    Raises:
        StorageError: the file cannot be read.
        RequestError: the file is not UTF-8 text, or a line of it is not a document.
    """
    try:
        with open_file(path) as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
            parts = _lines(stream, path) if path.suffix.lower() in _LINES else _blocks(stream, path)
            for text, begins in parts:
                yield Part(text, begins, raw.tell())
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not UTF-8 text; pass text, source code or JSONL") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error


def require_text(piece: str, path: Path) -> None:
    """Check that a piece of a file has no NUL byte, as a program or the hole of a sparse file has.

    Raises:
        RequestError: the piece has one.
    """
    if "\0" in piece:
        raise RequestError(
            f"{path}: is not text, since it has NUL bytes (a program, or a sparse file?); leave it out"
        )


def _blocks(stream: TextIOWrapper, path: Path) -> Iterator[tuple[str, bool]]:
    """Yield a text in parts that end at line ends if possible, and whether each is the first."""
    begins, kept = True, ""
    while block := stream.read(BLOCK):
        require_text(block, path)
        text = kept + block
        cut = text.rfind("\n") + 1 or len(text)
        kept = text[cut:]
        yield text[:cut], begins
        begins = False
    if kept:
        yield kept, begins


def _lines(stream: TextIOWrapper, path: Path) -> Iterator[tuple[str, bool]]:
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        require_text(line, path)
        if len(line) == LONGEST_LINE:
            raise RequestError(f"{path}: line {number} has {LONGEST_LINE} characters or more; split it")
        if not line.strip():
            continue
        texts = _texts(line)
        if texts is None:
            raise RequestError(
                f"{path}: line {number} ({printable(line.strip(), 40)}) is not a document; it must be a JSON "
                'string, or an object with "text", "content" or "messages"'
            )
        if any(map(_HALF_PAIR.search, texts)):
            raise RequestError(
                f"{path}: line {number} has half a surrogate pair (\\ud800 to \\udfff), which is not text; "
                "remove it"
            )
        for text in texts:
            for start in range(0, len(text), BLOCK):
                yield text[start : start + BLOCK], start == 0


def _texts(line: str) -> list[str] | None:
    """Return the documents of a line; None if the line is not valid."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        texts = [each.get("content") if isinstance(each, dict) else None for each in value["messages"]]
        return [text for text in texts if isinstance(text, str)]
    if isinstance(value, dict):
        value = value.get("text", value.get("content"))
    return [value] if isinstance(value, str) else None


# The disk space of a datastore is estimated before hours of work are spent on it.

NUM_SAMPLES = 16
"""The number of samples, spread evenly over all bytes, from which the tokens per byte are measured."""

SPOT_BYTES = 1 << 13
"""The size of a sample."""

STORED_BYTES, WORKING_BYTES = 8, 4
"""Bytes of disk per token: of the datastore, and of the temporary files while it is built."""


@dataclass(frozen=True)
class Survey:
    """The number of files to read, their bytes, and an estimate of their tokens.

    `beginning` is the size of the datastore's part before the text, which depends on the vocabulary.
    """

    files: int
    bytes: int
    tokens: int
    beginning: int = 0

    @property
    def disk_bytes(self) -> int:
        """The size of the finished datastore."""
        return self.beginning + self.tokens * STORED_BYTES

    @property
    def building_bytes(self) -> int:
        """The disk space that is needed while the datastore is built."""
        return self.disk_bytes + self.tokens * WORKING_BYTES

    def require_room(self, target: Path) -> None:
        """Check that a datastore of these files fits its format and the disk.

        Raises:
            RequestError: the files have more tokens than a datastore holds.
            StorageError: the disk of `target` has too little space.
        """
        if self.tokens > MAX_ENTRIES:
            raise RequestError(
                f"the files have {bytes_text(self.bytes)}, about {self.tokens:,} tokens, and a datastore "
                f"holds at most {MAX_ENTRIES:,}; pass fewer files"
            )
        try:
            free = shutil.disk_usage(target.parent).free
        except OSError as error:
            raise StorageError(f"{target}: cannot be written ({error.strerror})") from error
        if self.building_bytes > free:
            raise StorageError(
                f"{target}: takes about {bytes_text(self.building_bytes)} of disk while it is built, but "
                f"only {bytes_text(free)} are free; pass fewer files, or choose another disk with -o"
            )


def survey(paths: Sequence[Path], count_tokens: Callable[[str], int], vocabulary_size: int) -> Survey:
    """Open every file, and estimate from samples how many tokens all files have together.

    Raises:
        StorageError: a file cannot be read.
        RequestError: a sample is not text.
    """
    sizes = [_size(path) for path in paths]
    whole = sum(sizes)
    read = tokens = 0
    for spot in range(NUM_SAMPLES):
        place = whole * (2 * spot + 1) // (2 * NUM_SAMPLES)
        for path, size in zip(paths, sizes, strict=True):
            if place < size:
                data = _sample(path, place, size)
                text = data.decode("utf-8", "ignore")
                require_text(text, path)
                read += len(data)
                tokens += count_tokens(text)
                break
            place -= size
    estimate = whole * tokens // read if read else 0
    return Survey(len(paths), whole, estimate, text_begin(vocabulary_size))


def _size(path: Path) -> int:
    try:
        with open_file(path) as stream:
            return os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error


def _sample(path: Path, place: int, size: int) -> bytes:
    """Return SPOT_BYTES bytes from a place in a file of this size, or the last ones of the file."""
    try:
        with open_file(path) as stream:
            stream.seek(max(0, min(place, size - SPOT_BYTES)))
            return stream.read(SPOT_BYTES)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
