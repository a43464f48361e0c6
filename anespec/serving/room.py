"""How much memory a daemon's models may take, and how much one takes."""

from dataclasses import dataclass
from typing import Self

from anespec.manifests.machine import machine_memory
from anespec.manifests.schema import Manifest

MEMORY_FACTOR = 1.3
"""What a loaded model takes, in bytes of its weights and states (docs/serving.md has what was measured)."""

SHARE_OF_MACHINE = 0.8
"""Of the machine's memory, where nobody says how much models may take."""


@dataclass(frozen=True)
class MemoryLimit:
    """What all models together may take, in bytes.

    A firm limit is one that somebody gave. Another lets a model be larger that has no other beside it.
    """

    bytes: int
    is_firm: bool = True

    @classmethod
    def of(cls, asked: int | None) -> Self:
        """What was asked for, or what this machine can spare."""
        if asked is not None:
            return cls(asked)
        return cls(int(SHARE_OF_MACHINE * machine_memory()), is_firm=False)

    def holds(self, taken: int, more: int) -> bool:
        """Whether there is room for more bytes beside those that are taken."""
        return taken + more <= self.bytes or (not taken and not self.is_firm)


def memory_of(manifest: Manifest) -> int:
    """Bytes that an artifact takes once it is loaded, about."""
    weights = sum(shard.bytes for shard in manifest.shards)
    return int(MEMORY_FACTOR * (weights + manifest.state_bytes)) + manifest.tokens.bytes
