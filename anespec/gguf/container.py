"""A model's GGUF, in one file or in parts: metadata, and tensors that are dequantised when they are read."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.dequantise import dequantised
from anespec.gguf.mapped_file import MappedFile, MetadataValue, TensorInfo, unfit
from anespec.gguf.parts import JOIN, PartName, require_parts
from anespec.system.errors import GGUFError
from anespec.system.formatting import quoted

SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
"""Keys of a part: its number from 0, how many parts there are, and the tensors of all together."""

OWN_KEYS = {SPLIT_NUMBER, "general.alignment"}
"""Keys that each part has for itself."""


class GGUFFile:
    """An open GGUF: one file, or all parts of a model, of which the first has the metadata.

    Metadata strings are decoded at once; numeric arrays and tensors stay views of the mapping.
    Use it as a context manager, or call `close`; views taken from it keep the mapping alive.
    """

    def __init__(self, path: Path | str) -> None:
        """Map the files and parse their headers; of a model in parts, `path` is the first.

        Raises:
            StorageError: a file cannot be opened.
            GGUFError: a file is not GGUF, is truncated, or its tables are inconsistent; parts are missing, or
                do not belong together.
        """
        self.path = Path(path)
        self.paths = require_parts(self.path)
        with ExitStack() as opened:
            self._files: list[MappedFile] = []
            for number, each in enumerate(self.paths):
                file = MappedFile(each)
                opened.callback(file.close)
                self._files.append(file)
                self._require_part(file, number)
            self.metadata: dict[str, MetadataValue] = self._files[0].metadata
            self._holders: dict[str, MappedFile] = self._tensor_holders()
            opened.pop_all()
        self.tensors: dict[str, TensorInfo] = {
            name: file.tensors[name] for name, file in self._holders.items()
        }
        self.nbytes = sum(file.nbytes for file in self._files)

    def _require_part(self, file: MappedFile, number: int) -> None:
        """Check that a file is the part of this model that its name says."""
        count = len(self.paths)
        said = _whole(file, SPLIT_COUNT, 0)
        if count == 1:
            if said is not None and said > 1:
                part = PartName(self.path.stem, 1, said)
                raise GGUFError(
                    f"{file.path}: is one of {said} parts, but has not the name of one; name them "
                    f"{part.numbered(1)} and so on, or {JOIN}"
                )
            return
        if said != count:
            raise GGUFError(
                f"{file.path}: its name says that the model has {count} parts, and its metadata "
                f"({SPLIT_COUNT}) {quoted(str(said), 40) if said else 'that it is no part'}; rename it"
            )
        found = _whole(file, SPLIT_NUMBER)
        if found != number:
            raise GGUFError(
                f"{file.path}: its name says that it is part {number + 1}, and its metadata ({SPLIT_NUMBER} "
                f"{quoted(str(found), 40)}) another; download it again"
            )
        if not number:
            return
        first = self._files[0].metadata
        for key in file.metadata.keys() & first.keys() - OWN_KEYS:
            if not _same(file.metadata[key], first[key]):
                raise GGUFError(
                    f"{file.path}: is a part of another model than {self.path.name}, since {quoted(key)} "
                    "differs; download all parts of one model"
                )

    def _tensor_holders(self) -> dict[str, MappedFile]:
        """Return the file of each tensor, by the tensor's name."""
        holders: dict[str, MappedFile] = {}
        for file in self._files:
            for name in file.tensors:
                if (other := holders.setdefault(name, file)) is not file:
                    raise GGUFError(
                        f"{file.path}: the tensor {name!r} is also in {other.path.name}; download all parts "
                        "of one model"
                    )
        total = _whole(self._files[0], SPLIT_TENSORS)
        if len(self.paths) > 1 and total is not None and total != len(holders):
            raise GGUFError(
                f"{self.path}: its parts have {len(holders)} tensors, and its metadata ({SPLIT_TENSORS}) "
                f"says {quoted(str(total), 40)}; download them again"
            )
        return holders

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the files. If views of one are alive, it is unmapped with the last one."""
        for file in self._files:
            file.close()

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the tensor's bytes as stored: uint8 of shape (rows, bytes per row), a view.

        Raises:
            GGUFError: there is no such tensor.
        """
        info = self.info(name)
        return self._holders[name].raw(info)

    def forget(self, name: str) -> None:
        """Let the system drop the tensor's pages from memory; reading it again reads the disk again."""
        info = self.info(name)
        self._holders[name].forget(info)

    def path_of(self, name: str) -> Path:
        """Return the path of the file that has a tensor; raises GGUFError if there is no such tensor."""
        self.info(name)
        return self._holders[name].path

    def info(self, name: str) -> TensorInfo:
        """Return the entry of `name` in the tensor table.

        Raises:
            GGUFError: there is no such tensor.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise GGUFError(
                f"{self.path}: the tensor {name!r} is missing; the file is incomplete or of another "
                "architecture than it says"
            ) from None

    def rows(self, name: str, rows: slice | NDArray[np.integer] | None = None) -> NDArray[np.float32]:
        """Return rows of a tensor, dequantised to float32.

        The result has shape (rows, last axis); if `rows` is None, it is the whole tensor in its own shape.

        Raises:
            GGUFError: no such tensor, or a ggml type that the gguf package cannot dequantise.
        """
        info = self.info(name)
        raw = self.raw(name)
        try:
            # A block's scale may be infinite; the caller checks the result, so numpy need not warn.
            with np.errstate(all="ignore"):
                values = dequantised(raw if rows is None else raw[rows], info.kind)
        except NotImplementedError:
            raise GGUFError(
                f"{self.path}: tensor {name!r} is {info.kind.name}, which the gguf package cannot "
                "dequantise; use another quantisation of this model"
            ) from None
        return values.reshape(info.shape) if rows is None else values

    def __iter__(self) -> Iterator[TensorInfo]:
        return iter(self.tensors.values())

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string from the metadata.

        Raises:
            GGUFError: the key is missing (and there is no default), or its value is not a string.
        """
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise unfit(self.path, key, "a string", value)
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a non-negative integer from the metadata; raises GGUFError like `text`."""
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise unfit(self.path, key, "a non-negative integer", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number from the metadata; raises GGUFError like `text`."""
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise unfit(self.path, key, "a finite number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean from the metadata; raises GGUFError like `text`."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise unfit(self.path, key, "true or false", value)
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings from the metadata; raises GGUFError like `text`."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise unfit(self.path, key, "a list of strings", value)
        return [str(item) for item in value]

    def numbers(self, key: str) -> NDArray[np.generic]:
        """Return a numeric array from the metadata; raises GGUFError like `text`."""
        value = self.metadata.get(key)
        if not isinstance(value, np.ndarray):
            raise unfit(self.path, key, "an array of numbers", value)
        return value


def _whole(file: MappedFile, key: str, default: int | None = None) -> int | None:
    """Return an integer from a part's metadata; raises GGUFError if it is of another type."""
    value = file.metadata.get(key, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise unfit(file.path, key, "an integer", value)
    return value


def _same(one: MetadataValue, other: MetadataValue) -> bool:
    """Return whether two values of metadata are equal, without copies of them."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return type(one) is type(other) and (one == other or one != one)
