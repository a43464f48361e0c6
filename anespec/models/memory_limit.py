"""Define the memory limit of a daemon's models, and estimate the memory that a model takes."""

from dataclasses import dataclass
from typing import Self

from anespec.manifests.schema import PALETTES, Manifest
from anespec.runtime.backends import ENTRIES
from anespec.system.machine import machine_memory

SHARE_OF_MACHINE = 0.8
"""The share of the machine's memory that models may take by default."""


@dataclass(frozen=True)
class MemoryLimit:
    """The limit for all models together, in bytes.

    A firm limit was set by the user. A limit that is not firm allows a larger model if no other is in memory.
    """

    bytes: int
    is_firm: bool = True

    @classmethod
    def of(cls, asked: int | None) -> Self:
        """Return the configured limit, or the default for this machine."""
        if asked is not None:
            return cls(asked)
        return cls(int(SHARE_OF_MACHINE * machine_memory()), is_firm=False)

    def holds(self, taken: int, more: int) -> bool:
        """Return whether `more` bytes fit beside the `taken` ones."""
        return taken + more <= self.bytes or (not taken and not self.is_firm)


def memory_of(manifest: Manifest, backend: str) -> int:
    """Return the bytes that an artifact takes in use, estimated."""
    weights = sum(shard.bytes for shard in manifest.shards) + _looked_up(manifest, backend)
    return int(ENTRIES[backend].memory_factor * (weights + manifest.state_bytes)) + manifest.tokens.bytes


def _looked_up(manifest: Manifest, backend: str) -> int:
    """Return the bytes that weights with palettes take in memory beyond those of their files."""
    each = ENTRIES[backend].palette_bytes
    if each is None:
        return 0
    stored = [tensor for shard in manifest.shards for tensor in shard.tensors if tensor.weights in PALETTES]
    return sum(max(0, each * tensor.rows * tensor.columns - tensor.bytes) for tensor in stored)
