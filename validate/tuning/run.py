"""Run a search over a GGUF on this machine, from options to a report."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from anespec import __version__
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.known_hashes import KnownHashes
from anespec.manifests.presets import MatchedModel
from anespec.manifests.schema import Record
from anespec.manifests.store import model_sha256
from anespec.runtime.backends import resolve_backend
from anespec.system.errors import StorageError
from anespec.system.machine import machine_name
from anespec.system.safe_files import Folder
from anespec.validate.tuning.artifact_bench import ArtifactBench, Machine
from anespec.validate.tuning.candidates import Candidate, default_space
from anespec.validate.tuning.options import TuneOptions
from anespec.validate.tuning.report import TunedModel, TuneReport, measure_whole, tune_report
from anespec.validate.tuning.search import Found, Trial, search
from anespec.validate.tuning.workbench import Measured, Probe, Workbench, Workload

LARGEST_JOURNAL = 1 << 28
"""The most bytes of a journal; a measurement takes a few thousand."""

RecordT = TypeVar("RecordT", bound=Record)


class Heading(Record):
    """What measurements are about: another model, machine, backend or version needs its own journal."""

    model_sha256: str
    machine: str
    backend: str
    version: str
    context: int
    target: str
    heed_rules: bool
    threads: int | None = None


class Journal:
    """A workbench that records another one's measurements, each as a line of JSON, and repeats none.

    The first line says what the measurements are about; a journal about something else is replaced. The file
    is rewritten with each measurement, so that it is never half written and never written through a link.
    """

    def __init__(self, path: Path, heading: Heading, workbench: Workbench) -> None:
        """Read the recorded measurements.

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
        """Return the number of candidates that need not be measured."""
        return sum(not probe.whole for probe in self._known)

    def topology(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the layers of each shard of the whole model."""
        return self._workbench.topology(candidate)

    def measure(self, probe: Probe) -> Measured:
        """Return the recorded result of a probe, or measure and record it before it is returned.

        Raises:
            StorageError: the result cannot be written.
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


JOURNAL = "trials.jsonl"


@dataclass(frozen=True)
class Tuned:
    """The result of a run, its report, and the number of measurements reused from an earlier run."""

    found: Found
    report: TuneReport
    kept: int


def tune(
    gguf: Path,
    work: Path,
    options: TuneOptions,
    on_trial: Callable[[Trial], None] = lambda _: None,
    on_whole: Callable[[Candidate], None] = lambda _: None,
) -> Tuned:
    """Search, recording each measurement in `work` as it is made; then measure the best candidate as a whole.

    `work` is the user's own folder and not a link; it is created if it does not exist.

    Raises:
        GGUFError, UnsupportedModelError, RequestError: the model cannot be converted with these options.
        MissingPackageError: the backend cannot run here.
        StorageError: the disk is full or cannot be written.
        AnespecError: no candidate runs and passes its gates.
    """
    backend = resolve_backend(options.backend, options.target)
    with GGUFFile(gguf) as file:
        model = SourceModel(file)
        plan = ConversionPlan(model, ConvertOptions(target=options.target, context=options.context))
        heading = Heading(
            model_sha256=model_sha256(gguf, KnownHashes().file),
            machine=machine_name(),
            backend=backend,
            version=__version__,
            context=plan.context,
            target=options.target,
            heed_rules=not options.ignore_rules,
            threads=options.threads,
        )
        machine = Machine(
            backend, options.threads, heading.heed_rules, options.trial_seconds, options.workers
        )
        bench = ArtifactBench(model, options.target, plan.context, work.resolve(), machine)
        workload = Workload(options.prompt_tokens, options.answer_tokens)
        with _held(work):
            journal = Journal(work / JOURNAL, heading, bench)
            kept = journal.kept
            bench.sweep()
            if not kept:
                # An interrupted search may have left layers of another model.
                bench.clean()
            found = search(default_space(plan, options.weights), journal, workload, on_trial)
            bench.clean()
            whole = measure_whole(found, journal, workload, on_whole)
        tuned = TunedModel(
            matched=MatchedModel.of(model.facts.family.architecture, model.sizes),
            machine=heading.machine,
            target=options.target,
            context=plan.context,
        )
    return Tuned(found, tune_report(found, whole, tuned, workload), kept)


@contextmanager
def _held(work: Path) -> Iterator[None]:
    """Lock the work folder for one search at a time, since its content is trusted later; create it if needed.

    Raises:
        StorageError: it is a link, another search uses it, others may change it, or it cannot be created.
    """
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        with Folder.open(work.parent) as parent:
            folder = parent.folder(work.name, create=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"{work}: {error.strerror}; choose another folder with --work") from error
    with folder, folder.alone("another search"):
        folder.require_unshared()
        yield
