"""Read numbers of a model's metadata, with the errors of what is impossible."""

import numpy as np

from anespec.convert.families.family import Family
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import LARGEST_FACTOR
from anespec.system.errors import GGUFError, UnsupportedModelError

SMALLEST_FACTOR = 2.0**-14
"""The smallest factor in the graph; factors must be normal numbers in fp16."""


class MetadataReader:
    """Reads the keys of a family's architecture."""

    def __init__(self, file: GGUFFile, family: Family) -> None:
        self.file = file
        self.family = family

    def key(self, suffix: str) -> str:
        """Return the whole name of a key of the architecture."""
        return f"{self.family.architecture}.{suffix}"

    def factor(self, suffix: str, value: float) -> float:
        """Return a factor of the graph that the key determines; refuse it if fp16 cannot hold it."""
        if not SMALLEST_FACTOR <= abs(value) <= LARGEST_FACTOR:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.key(suffix)!r} gives a factor of {value:.3g}, which fp16 cannot "
                "hold; the metadata is corrupt"
            )
        return value

    def factors(self, key: str, count: int) -> list[float]:
        """Return a number for each layer, which the file gives once for all layers or layer by layer."""
        values = self.file.metadata.get(key)
        if not isinstance(values, np.ndarray):
            return [self.file.number(key)] * count
        if len(values) != count or values.dtype.kind != "f" or not np.isfinite(values).all():
            raise self.corrupt(f"{key!r} is not a list of {count} numbers")
        return [float(value) for value in values]

    def per_layer(self, suffix: str, count: int, default: list[int] | None = None) -> list[int]:
        """Return a whole number for each layer, which GGUF gives once for all layers or layer by layer."""
        key = self.key(suffix)
        values = self.file.metadata.get(key)
        if values is None and default is not None:
            return default
        if isinstance(values, np.ndarray) and values.dtype.kind in "iub":
            if len(values) < count:
                raise self.corrupt(f"{key!r} has {len(values)} entries for {count} layers")
            numbers = [int(value) for value in values[:count]]
        else:
            numbers = [self.file.integer(key)] * count
        if min(numbers) < 0:
            raise self.corrupt(f"{key!r} has a negative entry")
        return numbers

    def corrupt(self, what: str) -> GGUFError:
        """Return the error for metadata that contradict themselves."""
        return GGUFError(f"{self.file.path}: {what}; the metadata is corrupt")
