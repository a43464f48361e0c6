"""Run trials one after another, each in a process of its own with a time limit, and store the results.

FOLDER/run.json              what this run is; another run starts afresh
FOLDER/records/KEY.json      a trial that ended
FOLDER/records/KEY.asked     a trial that was started; without a record it ended the self-test
"""

import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Protocol

from pydantic import Field, ValidationError

from anespec.manifests.schema import Bytes, Record
from anespec.manifests.verdicts import Moment
from anespec.system.child_python import (
    NEUTRAL_FOLDER,
    child_command,
    child_environment,
    lifeline,
    signal_name,
)
from anespec.system.errors import StorageError
from anespec.system.formatting import LONGEST_REASON, bytes_text, duration_text, printable
from anespec.system.safe_files import Folder, write_atomically
from anespec.validate.selftest.child import ChildLine, TrialRequest
from anespec.validate.selftest.disk import CACHE_LIMIT, NO_SPACE, CacheWatch, Free, free_disk
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.patience import Patience, settle
from anespec.validate.selftest.records import Failure, Measured, Outcome, Trial, TrialRecord

CHILD = "anespec.validate.selftest.child"
MAX_OUTPUT = 1 << 26
"""The most characters of a process's lines; the longest line, with a compute plan, has a few millions."""

MAX_ERROR_BYTES = 2000
"""The bytes of standard error that are kept of a process that was killed."""


class End(Enum):
    """Why a process prints no more lines."""

    ENDED = 1
    TOO_MUCH = 2
    SILENT = 3


class Identity(Record):
    """What a run is; a run continues only if its identity is the same."""

    anespec: str
    device: str
    machine: str
    system: str
    libraries: tuple[str, ...]
    scale: Scale
    started_at: Moment
    free_bytes: Bytes = Field(description="free disk when it began")

    def same_as(self, other: "Identity") -> bool:
        """Return whether two runs differ only in their start and the free disk at that time."""
        began = {"started_at": self.started_at, "free_bytes": self.free_bytes}
        return other.model_copy(update=began) == self


class Lines(Protocol):
    """The lines of a process as they arrive."""

    def get(self, *, timeout: float) -> str | End:
        """Return the next line; raises queue.Empty if none arrives in that time."""
        ...


class RunTrial(Protocol):
    """Runs a trial to its end, whatever that is; `say` is called with each stage."""

    def __call__(self, asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord: ...


class Run:
    """A self-test's folder: results of finished trials are read from it, other trials are run."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        run_trial: RunTrial,
        *,
        again: bool = False,
        cache_limit: int = CACHE_LIMIT,
        free_now: Free = free_disk,
    ) -> None:
        """Open the folder; remove the content of another run, or of any run if `again` is set.

        Raises:
            StorageError: the folder cannot be used.
        """
        self.folder = folder
        self._run_trial = run_trial
        self._records = folder / "records"
        self._by_force = False
        self._free_now = free_now
        known = None if again else _identity(folder)
        same = known is not None and known.same_as(identity)
        self.identity = known if same and known is not None else identity
        self.caches = CacheWatch(folder, self.identity.free_bytes, cache_limit, free_now)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not same:
                # The folder itself stays: the running process holds its lock.
                with Folder.open(folder) as opened:
                    opened.remove_content()
            self._records.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "run.json", self.identity.model_dump_json())
        except OSError as error:
            raise StorageError(f"{folder}: cannot be used ({error.strerror})") from error

    def record(self, trial: Trial, say: Callable[[str], None]) -> TrialRecord:
        """Return the result of a trial; run it if there is none yet."""
        if (known := self._known(trial)) is not None:
            return known
        kept, begun = self._records / f"{trial.key}.json", self._records / f"{trial.key}.asked"
        taken = self.caches.taken
        record = self._tried(trial, begun, say)
        record = record.model_copy(update={"cache_bytes": max(0, self.caches.taken - taken)})
        if record.outcome is not Outcome.NO_ROOM:
            write_atomically(kept, record.model_dump_json())
        begun.unlink(missing_ok=True)
        return record

    def knows(self, trial: Trial) -> bool:
        """Return whether the trial ended before, so that it is not run again."""
        return self._known(trial) is not None

    def _known(self, trial: Trial) -> TrialRecord | None:
        with suppress(OSError, ValidationError):
            known = TrialRecord.model_validate_json((self._records / f"{trial.key}.json").read_bytes())
            return known if known.trial == trial else None
        return None

    def _tried(self, trial: Trial, begun: Path, say: Callable[[str], None]) -> TrialRecord:
        if begun.exists():
            failure = Failure(stage="running", text="it was started, and left no result")
            return TrialRecord(trial=trial, outcome=Outcome.LOST, seconds=0.0, failure=failure)
        room = self._free_now(self.folder)
        if trial.needs_bytes > room:
            text = f"it takes {bytes_text(trial.needs_bytes)} of disk, and {bytes_text(room)} are free"
            return TrialRecord(
                trial=trial,
                outcome=Outcome.NO_ROOM,
                seconds=0.0,
                failure=Failure(stage="starting", text=text, mend="free some disk, and run the same again"),
            )
        identity = self.identity
        asked = TrialRequest(
            trial=trial, scale=identity.scale, device=identity.device, folder=str(self.folder.absolute())
        )
        write_atomically(begun, asked.model_dump_json())
        try:
            if self._by_force:
                settle(say)
            record = self._run_trial(asked, begun, say)
            self._by_force = record.outcome in (Outcome.KILLED, Outcome.HUNG) or record.baseline_failed
            return record
        except KeyboardInterrupt:
            # The user interrupted the run, so the trial is not to blame.
            begun.unlink(missing_ok=True)
            raise

    def free_build(self, name: str) -> None:
        """Remove an artifact and its compiled shards, which are no longer needed."""
        shutil.rmtree(self.folder / "artifacts" / f"{name}.anespec", ignore_errors=True)
        shutil.rmtree(self.folder / "compiled" / name, ignore_errors=True)

    def free(self, size: str) -> None:
        """Remove everything made from models of one size, which are no longer needed."""
        for path in (self.folder / "models").glob(f"{size}*.gguf"):
            path.unlink(missing_ok=True)
        for name in ("artifacts", "compiled"):
            for path in (self.folder / name).glob(f"{size}-*"):
                shutil.rmtree(path, ignore_errors=True)


def _identity(folder: Path) -> Identity | None:
    with suppress(OSError, ValidationError):
        return Identity.model_validate_json((folder / "run.json").read_bytes())
    return None


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def run_in_child(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
    """Run a trial in a process that is killed if it hangs (see Patience and RunTrial)."""
    began = time.monotonic()
    stage, kept = "starting", None

    def ended(outcome: Outcome, text: str) -> TrialRecord:
        failure = Failure(stage=stage, text=text)
        if kept is not None:
            measured = kept.model_copy(update={"baseline": failure})
            return _record(asked, began, Outcome.DONE, measured=measured)
        return _record(asked, began, outcome, failure)

    with _child(file) as (process, lines):
        patience = Patience(asked.scale.silence, asked.scale.longest)
        while (line := next_line(lines, patience)) is not End.ENDED:
            if line is End.SILENT:
                _kill(process)
                return ended(Outcome.HUNG, f"no output for {duration_text(patience.seconds)}")
            if line is End.TOO_MUCH:
                return ended(Outcome.KILLED, f"it printed more than {bytes_text(MAX_OUTPUT)}")
            with suppress(ValidationError):
                told = ChildLine.model_validate_json(line)
                kept = told.kept or kept
                if told.stage is not None:
                    stage = told.stage
                    say(stage)
                elif (record := _record_of(asked, began, told, stage)) is not None:
                    return record
        code = process.wait()
        error_output = printable(" ".join(_error_text(file).split()), LONGEST_REASON)
    how = signal_name(-code) if code < 0 else f"it ended with exit code {code}"
    return ended(Outcome.KILLED, f"{how}: {error_output}" if error_output else how)


def next_line(lines: Lines, patience: Patience) -> str | End:
    """Return the next line of a process, or why there is none."""
    patience.heard()
    while True:
        try:
            return lines.get(timeout=patience.interval)
        except queue.Empty:
            if patience.hung():
                return End.SILENT


def _record_of(asked: TrialRequest, began: float, told: ChildLine, stage: str) -> TrialRecord | None:
    if told.measured is not None:
        return _record(asked, began, Outcome.DONE, measured=told.measured)
    if told.not_here is not None:
        return _record(asked, began, Outcome.NOT_HERE, Failure(stage=stage, text=told.not_here))
    if told.no_room is not None:
        return _record(asked, began, Outcome.NO_ROOM, Failure(stage=stage, text=told.no_room, code=NO_SPACE))
    if told.failure is not None:
        return _record(asked, began, Outcome.ERROR, told.failure)
    return None


def _record(
    asked: TrialRequest,
    began: float,
    outcome: Outcome,
    failure: Failure | None = None,
    measured: Measured | None = None,
) -> TrialRecord:
    return TrialRecord(
        trial=asked.trial,
        outcome=outcome,
        seconds=time.monotonic() - began,
        measured=measured or Measured(),
        failure=failure,
    )


@contextmanager
def _child(file: Path) -> "Iterator[tuple[subprocess.Popen[str], queue.Queue[str | End]]]":
    """Start a process and yield it with its lines; it ends with the block."""
    try:
        with lifeline() as held, _error_file(file).open("w", encoding="utf-8") as error_output:
            process = subprocess.Popen(
                [*child_command(CHILD), str(file.absolute())],
                env=child_environment(),
                cwd=NEUTRAL_FOLDER,
                stdin=held,
                stdout=subprocess.PIPE,
                stderr=error_output,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            lines: queue.Queue[str | End] = queue.Queue()
            reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
            reader.start()
            try:
                yield process, lines
            finally:
                _kill(process)
                process.wait()
                reader.join(1.0)
    finally:
        with suppress(FileNotFoundError):
            _error_file(file).unlink()


def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[str | End]") -> None:
    """Pass lines on; end a process that prints more than any trial does, which would fill the memory."""
    said, end = 0, End.ENDED
    with suppress(ValueError):
        while process.stdout is not None and (line := process.stdout.readline(MAX_OUTPUT)):
            said += len(line)
            if said > MAX_OUTPUT:
                _kill(process)
                end = End.TOO_MUCH
                break
            lines.put(line)
    lines.put(end)


def _kill(process: "subprocess.Popen[str]") -> None:
    """Kill the process and its descendants."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _error_file(file: Path) -> Path:
    return file.with_suffix(".words")


def _error_text(file: Path) -> str:
    with suppress(OSError), _error_file(file).open("rb") as error_output:
        error_output.seek(max(0, error_output.seek(0, os.SEEK_END) - MAX_ERROR_BYTES))
        return error_output.read(MAX_ERROR_BYTES).decode("utf-8", "replace")
    return ""
