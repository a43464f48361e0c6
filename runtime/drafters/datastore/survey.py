"""Estimate the disk space of a datastore before hours of work are spent on it."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anespec.manifests.errors import RequestError, StorageError
from anespec.manifests.formatting import bytes_text
from anespec.manifests.safe_files import open_file
from anespec.runtime.drafters.datastore.documents import require_text
from anespec.runtime.drafters.datastore.stored import MOST_ENTRIES, text_begin

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
