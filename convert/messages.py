"""The messages between a conversion and the processes that build its shard units."""

from dataclasses import dataclass
from pathlib import Path

from anespec.convert.options import ConvertOptions
from anespec.convert.shard_units import ShardUnit


@dataclass(frozen=True)
class Job:
    """The first message to a process: GGUF and options, and the numbers of workers and their threads."""

    gguf: Path
    options: ConvertOptions
    threads: int
    workers: int


@dataclass(frozen=True)
class Task:
    """A shard unit to build at `path`; `recipe` is the hash of everything that determines its bytes."""

    unit: ShardUnit
    path: Path
    recipe: str


@dataclass(frozen=True)
class BytesWritten:
    """The number of weight bytes written since the last such message, for the task with index `task`."""

    task: int
    bytes: int


@dataclass(frozen=True)
class Finished:
    """A task is finished: the unit is built and its checkpoint is written.

    `own` is the worker's peak memory in bytes so far, `worker` its process id. `shared` is the memory of the
    process that started the workers; forked workers share it.
    """

    task: int
    worker: int
    own: int
    shared: int


Answer = BytesWritten | Finished | Exception
"""A message from a process. An exception means that the job failed; the conversion raises it."""
