"""The documents of the files that a datastore is built from."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from anespec.runtime.drafters.datastore.stored import MOST_ENTRIES, text_begin
from anespec.system.errors import RequestError, StorageError
from anespec.system.formatting import bytes_text, printable
from anespec.system.safe_files import open_file

BLOCK = 1 << 16
"""Characters of a text that are read, and turned into tokens, at a time."""

LONGEST_LINE = 1 << 26
"""Characters of one line of JSONL."""

_LINES = (".jsonl", ".ndjson")
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Part:
    """A part of a document. `begins` says whether it is its first; `read` are the bytes of the file read."""

    text: str
    begins: bool
    read: int


def parts_of(path: Path) -> Iterator[Part]:
    """The documents of a file, in parts.

    JSONL has documents in every line: a text, or an object with `text`, `content` or `messages`, each of
    which is one. Any other file is one document.

    Raises:
        StorageError: it cannot be read.
        RequestError: it is no text in UTF-8, or a line of it is no document.
    """
    try:
        with open_file(path) as raw, TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
            parts = _lines(stream, path) if path.suffix.lower() in _LINES else _blocks(stream, path)
            for text, begins in parts:
                yield Part(text, begins, raw.tell())
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is no text in UTF-8; pass text, source code or JSONL") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error


def require_text(piece: str, path: Path) -> None:
    """Raise RequestError where a piece of a file has a zero byte: a program, or a hole of a sparse file."""
    if "\0" in piece:
        raise RequestError(
            f"{path}: is no text, since it holds NUL bytes (a program, or a sparse file?); leave it out"
        )


def _blocks(stream: TextIOWrapper, path: Path) -> Iterator[tuple[str, bool]]:
    """A text in parts that end with a line where they can."""
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
            raise RequestError(f"{path}: line {number} is longer than {LONGEST_LINE} characters; cut it up")
        if not line.strip():
            continue
        texts = _texts(line)
        if texts is None:
            raise RequestError(
                f"{path}: line {number} ({printable(line.strip(), 40)}) is no document; it must be a JSON "
                'string, or an object with "text", "content" or "messages"'
            )
        if any(map(_HALF_PAIR.search, texts)):
            raise RequestError(
                f"{path}: line {number} holds half a surrogate pair (\\ud800 to \\udfff), which is no text; "
                "take it out"
            )
        for text in texts:
            for start in range(0, len(text), BLOCK):
                yield text[start : start + BLOCK], start == 0


def _texts(line: str) -> list[str] | None:
    """The documents of a line; None where it is none."""
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


# Estimate the disk space of a datastore before hours of work are spent on it.

SPOTS = 16
"""Places, spread evenly over all bytes, at which the tokens per byte are measured."""

SPOT_BYTES = 1 << 13

KEPT_BYTES, WORKING_BYTES = 8, 4
"""Bytes of disk per token: of the datastore, and of the temporary files while it is built."""


@dataclass(frozen=True)
class Survey:
    """Files to be read, their bytes, and an estimate of their tokens.

    `beginning` is the bytes of the datastore's file before the text, which follow from the vocabulary.
    """

    files: int
    bytes: int
    tokens: int
    beginning: int = 0

    @property
    def disk_bytes(self) -> int:
        """Bytes of the finished datastore."""
        return self.beginning + self.tokens * KEPT_BYTES

    @property
    def building_bytes(self) -> int:
        """Bytes that are needed while it is built."""
        return self.disk_bytes + self.tokens * WORKING_BYTES

    def require_room(self, target: Path) -> None:
        """Do nothing where a datastore of these files fits its format and the disk.

        Raises:
            RequestError: the files have more tokens than a datastore holds.
            StorageError: the disk of `target` has too little space.
        """
        if self.tokens > MOST_ENTRIES:
            raise RequestError(
                f"the files have {bytes_text(self.bytes)}, about {self.tokens:,} tokens, and a datastore "
                f"holds {MOST_ENTRIES:,} at most; pass fewer files"
            )
        try:
            free = shutil.disk_usage(target.parent).free
        except OSError as error:
            raise StorageError(f"{target}: cannot be written ({error.strerror})") from error
        if self.building_bytes > free:
            raise StorageError(
                f"{target}: takes about {bytes_text(self.building_bytes)} of disk while it is built, and "
                f"{bytes_text(free)} are free; pass fewer files, or another -o"
            )


def survey(paths: Sequence[Path], count_tokens: Callable[[str], int], vocabulary_size: int) -> Survey:
    """Open every file, and estimate from samples how many tokens all have together.

    Raises:
        StorageError: one of them cannot be read.
        RequestError: a sample is no text.
    """
    sizes = [_size(path) for path in paths]
    whole = sum(sizes)
    read = tokens = 0
    for spot in range(SPOTS):
        place = whole * (2 * spot + 1) // (2 * SPOTS)
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
    """Bytes around a place in a file of this size."""
    try:
        with open_file(path) as stream:
            stream.seek(max(0, min(place, size - SPOT_BYTES)))
            return stream.read(SPOT_BYTES)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
