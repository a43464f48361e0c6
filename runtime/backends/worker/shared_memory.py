"""Allocate the memory that this process shares with its workers: a header, a table of named parts, the parts.

All numbers are little-endian. A tensor is contiguous in C order, fp16 or int32. A tensor whose shape depends
on T has one part for each width, named by `at_width`.
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
"""The alignment of parts in bytes: a memory page on Apple's processors."""

_HEADER = struct.Struct("<8sIIQ32sQII")
_ENTRY = struct.Struct("<64sQQ")
HEADER_BYTES = 4096
NO_BUILD = bytes(32)
"""The header's build if the worker's build is not compared."""

NAME_BYTES = 64
FP16, INT32 = np.dtype("<f2"), np.dtype("<i4")

Shape = tuple[int, ...]


def at_width(name: str, width: int) -> str:
    """Return the name of the part that holds a tensor of `width` rows."""
    return f"{name}@{width}"


class SharedMemory:
    """A mapped file without a name, which the system frees when the last process closes it.

    Its disk space is allocated at once: to write a page without space would kill the process.
    """

    def __init__(
        self, parts: Mapping[str, Shape], build: bytes = NO_BUILD, integers: Collection[str] = ()
    ) -> None:
        """Allocate parts of these shapes, filled with zeros: int32 if named in `integers`, else fp16.

        Raises:
            ArtifactError: a name is too long for the table.
            StorageError: the file cannot be created or mapped, or there is no space for it.
        """
        for name in parts:
            if len(name.encode()) > NAME_BYTES:
                raise ArtifactError(
                    f"the name {quoted(name)} is longer than the {NAME_BYTES} bytes of a name in the memory "
                    "that is shared with the worker; convert the model again"
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
                f"cannot map {bytes_text(end)} of memory to share with a worker ({error})"
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
        """The file descriptor, which a worker inherits."""
        return self._file.fileno()

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def tensor(self, name: str) -> NDArray[np.float16]:
        """Return an fp16 part as an array over the shared memory, valid until `close`."""
        offset, shape = self._parts[name]
        return np.frombuffer(self._memory, FP16, prod(shape), offset).reshape(shape)

    def integers(self, name: str) -> NDArray[np.int32]:
        """Return an int32 part as an array over the shared memory; see `tensor`."""
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
    """Allocate disk space for an empty file of `size` bytes; raise OSError if there is not enough."""
    if sys.platform == "darwin":
        # Python has no call that allocates space on this system, so only the free space is checked.
        disk = os.fstatvfs(descriptor)
        if disk.f_bavail * disk.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        os.posix_fallocate(descriptor, 0, size)


def _release(file: BinaryIO, memory: mmap.mmap) -> None:
    file.close()
    # A caller may still hold a tensor; the memory is then freed with it.
    with suppress(BufferError):
        memory.close()
