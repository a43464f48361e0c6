"""What was measured, kept as it comes, so that an interrupted search goes on where it stopped."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from anespec.manifests.errors import StorageError
from anespec.manifests.schema import Record
from anespec.validate.tuning.candidates import Candidate
from anespec.validate.tuning.workbench import Measured, Probe, Workbench

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


class Journal:
    """A workbench that writes down what another one measures, a line of JSON each, and repeats nothing.

    The first line says what the others are about; a journal about something else is begun anew. A last line
    that was cut short by the end of a process is dropped.
    """

    def __init__(self, path: Path, heading: Heading, workbench: Workbench) -> None:
        """Read what is there.

        Raises:
            StorageError: the file cannot be read or written.
        """
        self.path = path
        self._workbench = workbench
        self._known: dict[Probe, Measured] = {}
        try:
            lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
            if _reads_as(Heading, lines[:1]) == [heading]:
                self._known = {found.probe: found for found in _reads_as(Measured, lines[1:])}
            kept = [heading, *self._known.values()]
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text("".join(f"{record.model_dump_json()}\n" for record in kept), "utf-8")
            partial.replace(path)
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}; choose another folder with --work") from error

    @property
    def kept(self) -> int:
        """Measurements that need not be made."""
        return len(self._known)

    def topology(self, candidate: Candidate) -> tuple[int, ...]:
        """Layers per shard of the whole model."""
        return self._workbench.topology(candidate)

    def measure(self, probe: Probe) -> Measured:
        """What is known of a probe, or what the workbench finds, on disk before it is returned.

        Raises:
            StorageError: it cannot be written.
        """
        if probe not in self._known:
            found = self._workbench.measure(probe)
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(f"{found.model_dump_json()}\n")
            except OSError as error:
                raise StorageError(f"{self.path}: {error.strerror}; make room and run it again") from error
            self._known[probe] = found
        return self._known[probe]


def _reads_as(kind: type[RecordT], lines: list[str]) -> list[RecordT]:
    found = []
    for line in lines:
        try:
            found.append(kind.model_validate_json(line))
        except ValidationError:
            break
    return found
