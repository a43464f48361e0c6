"""Run groups of consecutive shards: one group here, or several in a process each.

Groups are divided as native workers divide them, since one process may hold only so many bytes of weights on
a Neural Engine.
"""

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Protocol

import numpy as np

from anespec.manifests.schema import HIDDEN_IN, Bytes, HeadShard, Index, Record
from anespec.system.child_python import NEUTRAL_FOLDER, child_command, child_environment, end_child
from anespec.system.coreml_errors import ended_by
from anespec.system.formatting import last_line
from anespec.validate.selftest.bench import Bench, memory_now
from anespec.validate.selftest.devices.choosing import name_of
from anespec.validate.selftest.devices.device import LoadedModel, Tensor, Units
from anespec.validate.selftest.devices.session import ShardSession, as_taken
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import Pass
from anespec.validate.selftest.records import Build

MODULE = "anespec.validate.selftest.group_process"
MAX_ERROR_BYTES = 4096


class GroupFailedError(Exception):
    """A group's process failed or died; the message is the library's, or from coreml_errors."""


class GroupAsked(Record):
    """The job of a process: hold the shards first..end-1 in the manifest's order."""

    build: Build
    first: Index
    end: Index
    units: Units
    device: str
    scale: Scale
    folder: str


class GroupLoaded(Record):
    """The seconds of loading, and the memory that it added to the process."""

    seconds: float
    memory_bytes: Bytes


class GroupPassed(Record):
    """The seconds of a pass's predictions, and whether all outputs are finite."""

    seconds: float
    finite: bool


class GroupLine(Record):
    """One line that a process prints; one of the fields is set. The hidden state follows `passed`."""

    stage: str | None = None
    loaded: GroupLoaded | None = None
    passed: GroupPassed | None = None
    failed: str | None = None


class Group(Protocol):
    """Shards through which a pass runs."""

    def loaded(self) -> GroupLoaded:
        """Wait until all shards are loaded."""
        ...

    def run(self, step: Pass) -> tuple[Tensor, GroupPassed]:
        """Run a pass; return the hidden state after it."""
        ...


class GroupHere:
    """Shards in this process, loaded by the first call of `loaded`."""

    def __init__(self, bench: Bench, build: Build, share: range, units: Units) -> None:
        self._bench, self._build, self._share, self._units = bench, build, share, units
        self._layers: list[ShardSession] = []
        self._heads: list[tuple[HeadShard, LoadedModel]] = []

    def loaded(self) -> GroupLoaded:
        """See Group."""
        before, seconds = memory_now(), 0.0
        shards = self._bench.artifact(self._build).manifest.shards
        for number in self._share:
            shard = shards[number]
            if isinstance(shard, HeadShard):
                model, spent = self._bench.open_head(self._build, shard, self._units)
                self._heads.append((shard, model))
                seconds += spent
            else:
                opened = self._bench.open(self._build, self._units, shard=number)
                self._layers.append(opened.session)
                seconds += opened.load_seconds
        return GroupLoaded(seconds=seconds, memory_bytes=max(0, memory_now() - before))

    def run(self, step: Pass) -> tuple[Tensor, GroupPassed]:
        """See Group."""
        total, hidden, manifest = 0.0, step.hidden, self._bench.artifact(self._build).manifest
        for session in self._layers:
            hidden, seconds = session.run(Pass(step.rows, hidden))
            total += seconds
        finite = bool(np.isfinite(hidden).all())
        for shard, model in self._heads:
            given = as_taken(manifest, shard, shard.inputs[0], hidden)
            found = model.predict({HIDDEN_IN: given}, None)
            total += found.seconds
            finite = finite and bool(np.isfinite(found.outputs[shard.outputs[0].name]).all())
        return hidden, GroupPassed(seconds=total, finite=finite)

    def close(self) -> None:
        """Release the models."""
        for session in self._layers:
            session.close()
        for _, model in self._heads:
            model.close()


@dataclass
class GroupElsewhere:
    """Shards in another process, which was started and loads them."""

    process: "subprocess.Popen[bytes]"
    error_output: IO[bytes]
    say: Callable[[str], None]
    known: GroupLoaded | None = None

    def loaded(self) -> GroupLoaded:
        """See Group; raises GroupFailedError."""
        while self.known is None:
            self.known = self._line().loaded
        return self.known

    def run(self, step: Pass) -> tuple[Tensor, GroupPassed]:
        """See Group; raises GroupFailedError."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(step.hidden.tobytes())
            self.process.stdin.flush()
        while (told := self._line()).passed is None:
            continue
        data = self.process.stdout.read(step.hidden.nbytes)
        if len(data) != step.hidden.nbytes:
            raise self._lost()
        return np.frombuffer(data, np.float16).reshape(step.hidden.shape), told.passed

    def _line(self) -> GroupLine:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise self._lost()
        told = GroupLine.model_validate_json(line)
        if told.failed is not None:
            raise GroupFailedError(told.failed)
        if told.stage is not None:
            self.say(told.stage)
        return told

    def _lost(self) -> GroupFailedError:
        code = self.process.wait()
        self.error_output.seek(0)
        said = last_line(self.error_output.read()[-MAX_ERROR_BYTES:].decode("utf-8", "replace"))
        end = ended_by(-code) if code < 0 else f"the process ended with exit code {code}"
        return GroupFailedError(f"{said}\n{end}".strip())


@contextmanager
def open_groups(
    bench: Bench, build: Build, shares: Sequence[range], units: Units, *, in_turn: bool = False
) -> Iterator[tuple[Group, ...]]:
    """Open a group per share: here if there is one share, else each in a process of its own.

    The processes load at the same time, or `in_turn`.
    """
    with ExitStack() as stack:
        if len(shares) == 1:
            yield (stack.enter_context(closing(GroupHere(bench, build, shares[0], units))),)
            return
        groups = []
        for number, share in enumerate(shares, 1):
            place = f"{number} of {len(shares)}"
            groups.append(stack.enter_context(_elsewhere(bench, build, share, units, place)))
            if in_turn:
                groups[-1].loaded()
        yield tuple(groups)


@contextmanager
def _elsewhere(
    bench: Bench, build: Build, share: range, units: Units, place: str
) -> Iterator[GroupElsewhere]:
    asked = GroupAsked(
        build=build,
        first=share.start,
        end=share.stop,
        units=units,
        device=name_of(bench.device),
        scale=bench.scale,
        folder=str(bench.folder),
    )
    with tempfile.TemporaryFile() as error_output:
        # It stays in the trial's process group, which is killed as a whole.
        process = subprocess.Popen(
            [*child_command(MODULE), asked.model_dump_json()],
            env=child_environment(),
            cwd=NEUTRAL_FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=error_output,
        )
        try:
            yield GroupElsewhere(process, error_output, lambda stage: bench.say(f"process {place}: {stage}"))
        finally:
            end_child(process)
