"""Rows of a GGUF's tensors, read from the file whenever they are asked for.

Whoever reads a mapping behind the end of a file that was cut short meanwhile is ended by the system (SIGBUS).
What serves for days outlives its files: here that is an error like any other.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.container import GGUFFile, TensorInfo
from anespec.gguf.dequantise import dequantised
from anespec.system.errors import ArtifactError, StorageError


class GGUFRows:
    """An open GGUF of which rows of matrices are read. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Read the tensor table; raises GGUFError or StorageError where that fails."""
        self.path = path
        with GGUFFile(path) as file:
            self._infos = {info.name: file.info(info.name) for info in file}
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror})") from error

    def info(self, name: str) -> TensorInfo:
        """The tensor-table row of `name`.

        Raises:
            ArtifactError: there is no such tensor.
        """
        if name not in self._infos:
            raise ArtifactError(f"{self.path}: the tensor {name!r} is missing; convert the model again")
        return self._infos[name]

    def rows(self, name: str, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Rows of a matrix, dequantised: float32 (rows, last axis).

        Raises:
            ArtifactError: the file does not hold them any more.
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
