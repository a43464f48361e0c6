"""The JSON argument of a process that opens an artifact."""

from anespec.manifests.schema import Count, Record
from anespec.runtime.backends.worker.sharing import WorkerLimits


class Opening(Record):
    """The artifact to open and its backend, as the one JSON argument of a process.

    `workers` of None are the default limits; `sequences` of None are all sequences of the artifact.
    """

    artifact: str
    backend: str
    threads: Count
    workers: WorkerLimits | None = None
    sequences: Count | None = None
