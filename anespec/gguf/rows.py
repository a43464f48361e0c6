"""Read rows of a GGUF's tensors from the file, without mapping it.

The system kills a process that reads a mapping past the end of a truncated file (SIGBUS). A daemon runs for
days, and its files may be truncated meanwhile; here that is an ordinary error.
"""

import os
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.dequantise import dequantised
from anespec.gguf.mapped_file import MappedFile, TensorInfo
from anespec.system.errors import ArtifactError, unreadable


class GGUFRows:
    """An open GGUF that reads rows of its matrices. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Read the tensor table; raises GGUFError or StorageError if that fails."""
        self.path = path
        with closing(MappedFile(path)) as file:
            self._infos = dict(file.tensors)
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise unreadable(path, error) from error

    def info(self, name: str) -> TensorInfo:
        """Return the entry of `name` in the tensor table.

        Raises:
            ArtifactError: there is no such tensor.
        """
        if name not in self._infos:
            raise ArtifactError(f"{self.path}: the tensor {name!r} is missing; convert the model again")
        return self._infos[name]

    def rows(self, name: str, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return rows of a matrix, dequantised to float32 of shape (rows, last axis).

        Raises:
            ArtifactError: the file no longer contains the rows.
            IndexError: there is no such row.
        """
        info = self.info(name)
        count, width = info.shape[0], info.nbytes // info.shape[0]
        wanted = rows.tolist()
        if any(not 0 <= row < count for row in wanted):
            raise IndexError(f"{name!r} has {count} rows")
        try:
            data = b"".join(
                [os.pread(self._file.fileno(), width, info.offset + row * width) for row in wanted]
            )
        except OSError as error:
            raise ArtifactError(f"{self.path}: cannot be read any more ({error.strerror})") from error
        if len(data) != width * len(wanted):
            raise ArtifactError(f"{self.path}: was cut short while it was in use; convert the model again")
        return dequantised(np.frombuffer(data, np.uint8).reshape(-1, width), info.kind)

    def close(self) -> None:
        """Release the file."""
        self._file.close()
