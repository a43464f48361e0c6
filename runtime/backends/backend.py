"""A backend: what turns an artifact into a Verifier. Nothing above it knows how shards are executed."""

from typing import Protocol

from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.start_times import Starts
from anespec.runtime.backends.runner import ShardRunner
from anespec.runtime.passes import Verifier


class Backend(Protocol):
    """One way of executing shards. Making one loads nothing."""

    @property
    def name(self) -> str:
        """As on the command line and in verdicts."""
        ...

    @property
    def uses_threads(self) -> bool:
        """Whether the number of threads can be set."""
        ...

    @property
    def takes_spans(self) -> bool:
        """Whether passes may attend to the first slots alone, so that an artifact can run with fewer
        sequences."""
        ...

    def unavailable(self) -> str | None:
        """Return the reason why the backend cannot run here, with the fix, as a clause; None if it can."""
        ...

    def library_version(self) -> str:
        """The version of what executes the shards; verdicts hold for one alone."""
        ...

    def open(self, artifact: Artifact, threads: int) -> Verifier:
        """Load all shards.

        Raises:
            ArtifactError: a shard is missing, damaged, not what the manifest says or has an operation that
                the backend lacks.
        """
        ...

    def open_again(self, artifact: Artifact, threads: int) -> Verifier | None:
        """As `open`, but compiled again: nothing is used that an earlier opening has left on disk.

        None where that is so of every opening. Raises like `open`.
        """
        ...

    def starts(self, artifact: Artifact) -> Starts | None:
        """What starting an artifact took before, loading and the first pass of each width; None where that is
        not known, or never long."""
        ...

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        """One shard by itself, as the golden gate looks at it; raises like `open`."""
        ...
