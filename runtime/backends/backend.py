"""The protocol of a backend, which makes a Verifier from an artifact.

The code above sees this protocol alone, and not the library that executes the shards.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.start_times import Starts
from anespec.runtime.backends.runner import ShardRunner
from anespec.runtime.passes import Verifier
from anespec.system.progress import idle


class Arithmetic(StrEnum):
    """How a backend rounds what it computes, which says how far it may be from the reference."""

    FLOAT = "float"
    """Sums are fp32, results fp16 or fp32."""

    INT8_ACTIVATIONS = "int8 activations"
    """The same, but rows that meet integer weights are rounded to int8 first."""

    ENGINE = "engine"
    """Sums are fp16, and functions are approximated, as on a Neural Engine."""


ACTIVATIONS_PER_SCALE = 128
"""The most channels of a row that are rounded to int8 with one scale; never more than a block of weights."""


class Backend(Protocol):
    """A way to execute shards. Its constructor loads nothing."""

    @property
    def name(self) -> str:
        """The name on the command line and in verdicts."""
        ...

    @property
    def uses_threads(self) -> bool:
        """Whether the number of threads can be set."""
        ...

    @property
    def arithmetic(self) -> Arithmetic:
        """How results are rounded."""
        ...

    @property
    def takes_spans(self) -> bool:
        """Whether a pass can attend to the first slots only; then an artifact can use fewer sequences."""
        ...

    def unavailable(self) -> str | None:
        """Return what the backend needs and lacks here, with the fix, as a clause; None if it can run."""
        ...

    def library_version(self) -> str:
        """Return the version of the library that executes the shards; a verdict is valid for one version."""
        ...

    def open(self, artifact: Artifact, threads: int, compiling: Callable[[], None] = idle) -> Verifier:
        """Load all shards. Call `compiling` once the library compiles them, which needs no GIL.

        Raises:
            ArtifactError: a shard is missing or damaged, has an operation that the backend lacks, or differs
                from the manifest.
        """
        ...

    def open_again(self, artifact: Artifact, threads: int) -> Verifier | None:
        """Load all shards without the compiled files that an earlier `open` left on disk.

        Return None if the backend keeps no such files. Raises like `open`.
        """
        ...

    def starts(self, artifact: Artifact) -> Starts | None:
        """Return the times of earlier starts: loading, and the first pass of each width.

        None if they are unknown, or if the backend always starts fast.
        """
        ...

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        """Load one shard alone, for the golden gate; raises like `open`."""
        ...
