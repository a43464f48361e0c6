"""Keep weights in memory once.

A library that rearranges weights when it first multiplies with them can read them where their file is mapped:
nothing is copied for it before, and no page of the file is needed after. Linux counts such pages as the
process's memory until they are released. Releasing them is free: a page that is read again is mapped again.
"""

import ctypes
import mmap
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import ArtifactError
from anespec.runtime.backends.portable.packed import Packed

ALIGNMENT = 64
"""Bytes of the widest register; a library may read no constant that begins elsewhere."""

SECONDS_BETWEEN_RELEASES = 0.02
"""At the speed of memory a hundred megabytes are read in it."""


def is_shareable(values: NDArray[Any]) -> bool:
    """Return whether a library that gets the address of an array can read its bytes in place."""
    return bool(values.flags.c_contiguous and values.nbytes and values.ctypes.data % ALIGNMENT == 0)


def shared_view(values: NDArray[Any]) -> NDArray[Any]:
    """The same bytes as an array that calls itself writable, for a library that takes no other.

    It does not keep `values` alive. A write to a file that is mapped for reading ends the process.
    """
    memory = (ctypes.c_uint8 * values.nbytes).from_address(values.ctypes.data)
    return np.ctypeslib.as_array(memory).view(values.dtype).reshape(values.shape)


class MappedWeights:
    """The weight files that constants are mapped from."""

    def __init__(self, constants: Iterable[NDArray[Any] | Packed | str]) -> None:
        """Find the files; constants that are not mapped have none."""
        found = (_mapping(value) for value in constants)
        self._files = {id(file): file for file in found if file is not None}

    def release(self) -> None:
        """Give back the memory of all pages that were read; nothing where the system cannot."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for file in self._files.values():
                file.madvise(mmap.MADV_DONTNEED)

    def require_whole(self, source: str) -> None:
        """Raise ArtifactError, naming the `source`, where a file was cut short.

        To be asked before each pass: a library may still read a weight, as for a pass of a new width, and
        reading behind the end of a file that is mapped ends the process (SIGBUS).
        """
        if any(file.size() < len(file) for file in self._files.values()):
            raise ArtifactError(
                f"{source}: its weights were cut short while they were in use; convert the model again"
            )

    @contextmanager
    def released_meanwhile(self) -> Iterator[None]:
        """Release again and again while something reads all weights, so that it never holds them all."""
        done = threading.Event()

        def keep_releasing() -> None:
            while not done.wait(SECONDS_BETWEEN_RELEASES):
                self.release()

        thread = threading.Thread(target=keep_releasing, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.release()


def _mapping(value: NDArray[Any] | Packed | str) -> mmap.mmap | None:
    """The mapped file that a constant is a part of."""
    below: object = value.data if isinstance(value, Packed) else value
    while isinstance(below, np.ndarray):
        below = below.base
    return below if isinstance(below, mmap.mmap) else None
