"""The memory that this process and its workers share: a header, a table of named parts, and the parts.

Everything is little-endian. A tensor is contiguous in C order, fp16 or int32; one that depends on T exists
once per width, under the name that `at_width` gives it.
"""

import errno
import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from math import prod
from typing import BinaryIO
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from anespec.system.errors import ArtifactError, StorageError
from anespec.system.formatting import bytes_text, quoted

MAGIC = b"ANESPECA"
PROTOCOL = 1
ALIGNMENT = 1 << 14
"""A page of memory on Apple's processors."""

_HEADER = struct.Struct("<8sIIQ32sQII")
_ENTRY = struct.Struct("<64sQQ")
HEADER_BYTES = 4096
NO_BUILD = bytes(32)
"""In place of the build of a worker that is not to be compared."""

NAME_BYTES = 64
FP16, INT32 = np.dtype("<f2"), np.dtype("<i4")

Shape = tuple[int, ...]


def at_width(name: str, width: int) -> str:
    """The name of a tensor that depends on T, as it is for passes over `width` rows."""
    return f"{name}@{width}"


class SharedMemory:
    """A file without a name, mapped; it goes when the last process that has it open does.

    Its room is taken at once: a write to a page for which none is left would kill the process.
    """

    def __init__(
        self, parts: Mapping[str, Shape], build: bytes = NO_BUILD, integers: Collection[str] = ()
    ) -> None:
        """Make room for zeros of these shapes; those named `integers` are int32.

        Raises:
            ArtifactError: a name is too long for the table.
            StorageError: the file system refuses, or has no room.
        """
        for name in parts:
            if len(name.encode()) > NAME_BYTES:
                raise ArtifactError(
                    f"the name {quoted(name)} is longer than the {NAME_BYTES} bytes that the worker's arena "
                    "has for it; convert the model again"
                )
        self._parts: dict[str, tuple[int, Shape]] = {}
        end = _aligned(HEADER_BYTES + _ENTRY.size * len(parts))
        for name, shape in parts.items():
            self._parts[name] = (end, shape)
            end += _aligned(self._nbytes(name, shape, integers))
        self.bytes = end
        self._file = _nameless_file(end)
        try:
            self._memory = mmap.mmap(self._file.fileno(), end)
        except (OSError, ValueError) as error:
            self._file.close()
            raise StorageError(
                f"no memory of {bytes_text(end)} can be shared with a worker ({error})"
            ) from error
        self.close = finalize(self, _release, self._file, self._memory)
        _HEADER.pack_into(
            self._memory, 0, MAGIC, PROTOCOL, HEADER_BYTES, end, build, HEADER_BYTES, len(parts), _ENTRY.size
        )
        for index, (name, (offset, shape)) in enumerate(self._parts.items()):
            size = self._nbytes(name, shape, integers)
            place = HEADER_BYTES + index * _ENTRY.size
            _ENTRY.pack_into(self._memory, place, name.encode(), offset, size)

    @property
    def descriptor(self) -> int:
        """The open file, for a worker to inherit."""
        return self._file.fileno()

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def tensor(self, name: str) -> NDArray[np.float16]:
        """A part itself, in its shape: what is written to it, workers see. Good until the shared memory
        closes."""
        offset, shape = self._parts[name]
        return np.frombuffer(self._memory, FP16, prod(shape), offset).reshape(shape)

    def integers(self, name: str) -> NDArray[np.int32]:
        """A part of int32 itself; see `tensor`."""
        offset, shape = self._parts[name]
        return np.frombuffer(self._memory, INT32, prod(shape), offset).reshape(shape)

    @staticmethod
    def _nbytes(name: str, shape: Shape, integers: Collection[str]) -> int:
        return (INT32 if name in integers else FP16).itemsize * prod(shape)


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _nameless_file(size: int) -> BinaryIO:
    with ExitStack() as undo:
        try:
            file: BinaryIO = undo.enter_context(tempfile.TemporaryFile(prefix="anespec-arena-"))
            os.truncate(file.fileno(), size)
            _take_room(file.fileno(), size)
        except OSError as error:
            raise StorageError(
                f"the folder for temporary files has no room for the {bytes_text(size)} that are shared with "
                f"a worker ({error.strerror}); set TMPDIR to another folder"
            ) from error
        undo.pop_all()
    return file


def _take_room(descriptor: int, size: int) -> None:
    """See to it that there is room for a whole file, which is empty; raises OSError where there is not."""
    if sys.platform == "darwin":
        # Nothing that Python has takes room there; what is free now is all that can be known.
        disk = os.fstatvfs(descriptor)
        if disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        os.posix_fallocate(descriptor, 0, size)


def _release(file: BinaryIO, memory: mmap.mmap) -> None:
    file.close()
    # Somebody may still have a tensor; the memory goes with it.
    with suppress(BufferError):
        memory.close()
