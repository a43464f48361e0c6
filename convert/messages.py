"""The messages between a run and the processes that build its units."""

from dataclasses import dataclass
from pathlib import Path

from anespec.convert.options import ConvertOptions
from anespec.convert.shard_units import ShardUnit
from anespec.system.errors import AnespecError


@dataclass(frozen=True)
class Job:
    """The job: what to build of a GGUF, with how many workers and threads each."""

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
class Written:
    """So many more bytes of a unit's weights are written."""

    bytes: int


@dataclass(frozen=True)
class Memory:
    """The largest memory in bytes of a worker so far: its own, and what it shares with its siblings."""

    own: int
    shared: int


@dataclass(frozen=True)
class Finished:
    """A unit is built, and its checkpoint was written."""

    memory: Memory


@dataclass(frozen=True)
class Failed:
    """A unit, or getting ready, failed: with what a person can act on, or with a bug's traceback."""

    error: AnespecError | None
    traceback: str


Answer = Written | Finished | Failed


@dataclass(frozen=True)
class Ended:
    """A forked worker, by its number, ended before its time; its status is that of os.wait."""

    worker: int
    status: int
