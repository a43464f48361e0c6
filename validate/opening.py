"""The job of a process that opens an artifact: the artifact, and its backend."""

from anespec.manifests.schema import Count, Record
from anespec.runtime.backends.worker.sharing import WorkerLimits


class Opening(Record):
    """The one argument of such a process, as JSON.

    `workers` of None are the limits by default, `sequences` of None all that the artifact has.
    """

    artifact: str
    backend: str
    threads: Count
    workers: WorkerLimits | None = None
    sequences: Count | None = None
