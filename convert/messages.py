"""The messages between a run and the processes that build its units."""

from dataclasses import dataclass
from pathlib import Path

from anespec.convert.options import ConvertOptions
from anespec.convert.shard_units import ShardUnit


@dataclass(frozen=True)
class Job:
    """The job: what to build of a GGUF, with how many workers and threads each. The tasks follow later."""

    gguf: Path
    options: ConvertOptions
    threads: int
    workers: int


@dataclass(frozen=True)
class Task:
    """One shard unit to build at `path`; `recipe` is the hash of all that it follows from."""

    unit: ShardUnit
    path: Path
    recipe: str


@dataclass(frozen=True)
class BytesWritten:
    """So many more bytes of the weights of a task, given by its number, are written."""

    task: int
    bytes: int


@dataclass(frozen=True)
class Finished:
    """The unit of a task is built, and its checkpoint was written.

    The largest memory in bytes so far is that of the worker, given by its process number, and `shared`, which
    the process that started the workers has, and they too where they were forked.
    """

    task: int
    worker: int
    own: int
    shared: int


Answer = BytesWritten | Finished | Exception
"""An exception is why the job failed, as the run is to raise it."""
