"""What was measured, kept as it comes, so that an interrupted search goes on where it stopped."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from anespec.manifests.schema import Record
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.validate.tuning.candidates import Candidate
from anespec.validate.tuning.workbench import Measured, Probe, Workbench

LARGEST_JOURNAL = 1 << 28
"""Bytes; a measurement has a few thousand."""

RecordT = TypeVar("RecordT", bound=Record)


class Heading(Record):
    """What measurements are about: another model, machine, backend or version needs its own."""

    model_sha256: str
    machine: str
    backend: str
    version: str
    context: int
    target: str
    heed_rules: bool
    threads: int | None = None


class Journal:
    """A workbench that writes down what another one measures, a line of JSON each, and repeats nothing.

    The first line says what the others are about; a journal about something else is begun anew. It is written
    anew with each measurement, so that it is never half written and never through a link.
    """

    def __init__(self, path: Path, heading: Heading, workbench: Workbench) -> None:
        """Read what is there.

        Raises:
            StorageError: the file cannot be read or written.
        """
        self.path = path
        self._workbench = workbench
        self._known: dict[Probe, Measured] = {}
        self._heading = heading
        lines = self._read().decode("utf-8", "replace").splitlines()
        if _reads_as(Heading, lines[:1]) == [heading]:
            self._known = {found.probe: found for found in _reads_as(Measured, lines[1:])}
        self._write()

    @property
    def kept(self) -> int:
        """Candidates that need not be measured."""
        return sum(not probe.whole for probe in self._known)

    def topology(self, candidate: Candidate) -> tuple[int, ...]:
        """Layers per shard of the whole model."""
        return self._workbench.topology(candidate)

    def measure(self, probe: Probe) -> Measured:
        """What is known of a probe, or what the workbench finds, on disk before it is returned.

        Raises:
            StorageError: it cannot be written.
        """
        if probe not in self._known:
            self._known[probe] = self._workbench.measure(probe)
            self._write()
        return self._known[probe]

    def _read(self) -> bytes:
        try:
            with Folder.open(self.path.parent) as folder:
                return folder.read(self.path.name, LARGEST_JOURNAL)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}; choose another folder with --work") from error

    def _write(self) -> None:
        lines = (
            f"{record.model_dump_json()}\n".encode() for record in (self._heading, *self._known.values())
        )
        try:
            with Folder.open(self.path.parent) as folder:
                folder.replace_parts(self.path.name, lines)
        except OSError as error:
            raise StorageError(
                f"{self.path}: {error.strerror}; make room, or choose another folder with --work"
            ) from error


def _reads_as(kind: type[RecordT], lines: list[str]) -> list[RecordT]:
    found = []
    for line in lines:
        try:
            found.append(kind.model_validate_json(line))
        except ValidationError:
            break
    return found
