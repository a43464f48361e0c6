"""The workbench that converts: each probe becomes an artifact, measured and judged in its own process."""

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.parts import lasting_path
from anespec.manifests.schema import Target
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import bytes_text
from anespec.validate.child_answer import child_answer
from anespec.validate.tuning.candidates import Candidate
from anespec.validate.tuning.trial_process import MODULE, TrialRequest, options_of
from anespec.validate.tuning.truncated_gguf import first_layers
from anespec.validate.tuning.workbench import Measured, Probe

MAX_SECONDS = 1800.0
"""The time limit of a probe. A first use on a Neural Engine was seen to take minutes; a longer one hangs."""

DISK_FACTOR = 2.2
"""The disk needed, divided by an artifact's bytes: the artifact, what Core ML compiles of it, and a tenth
each."""

FIRST_LAYERS = "first-{}.gguf"
"""The name of a GGUF with the first layers of the model, in the work folder."""

# The user's work folder may hold other files, which are never removed.
_FIRST = re.compile(r"first-\d+\.gguf")
_TRIAL = re.compile(r"\.?trial-[0-9a-f]{16}\.anespec(\.partial)?")


@dataclass(frozen=True)
class Machine:
    """What runs the probes: the backend, its workers' limits if it has workers, and the time limit."""

    backend: str
    threads: int | None
    heed_rules: bool
    most_seconds: float = MAX_SECONDS
    workers: WorkerLimits | None = None


class ArtifactBench:
    """A Workbench over a model's GGUF. Artifacts are in `work` while they are measured."""

    def __init__(
        self, model: SourceModel, target: Target, context: int, work: Path, machine: Machine
    ) -> None:
        self.model = model
        self.gguf = lasting_path(model.file.path)
        self.target = target
        self.context = context
        self.work = work
        self.machine = machine

    @property
    def layers(self) -> int:
        """Return the layers of the whole model."""
        return len(self.model.facts.layers)

    def topology(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the layers of each shard, as `convert` would plan them."""
        return self._plan(candidate).topology.layers

    def _plan(self, candidate: Candidate) -> ConversionPlan:
        return ConversionPlan(self.model, options_of(candidate, self.target, self.context))

    def _require_room(self, candidate: Candidate) -> None:
        """Raise StorageError if a whole artifact would fill the disk."""
        needed = int(DISK_FACTOR * self._plan(candidate).estimated_bytes())
        free = shutil.disk_usage(self.work).free
        if free < needed:
            raise StorageError(
                f"{self.work}: a whole artifact takes up to {bytes_text(needed)}, and only "
                f"{bytes_text(free)} are free; make room, or choose another folder with --work"
            )

    def measure(self, probe: Probe) -> Measured:
        """Measure a probe; see Workbench. Raises StorageError if the disk is full or cannot be written."""
        if probe.whole:
            self._require_room(probe.candidate)
        output = (
            self.work / f"trial-{hashlib.sha256(probe.model_dump_json().encode()).hexdigest()[:16]}.anespec"
        )
        try:
            gguf, layers = (self.gguf, self.layers) if probe.whole else self._first_layers(probe.layers)
            request = TrialRequest(
                gguf=str(gguf),
                output=str(output),
                probe=probe.model_copy(update={"layers": layers}),
                target=self.target,
                context=self.context,
                backend=self.machine.backend,
                threads=self.machine.threads,
                heed_rules=self.machine.heed_rules,
                workers=self.machine.workers,
            )
            found = _in_a_process(request, self.machine.most_seconds)
        finally:
            shutil.rmtree(output, ignore_errors=True)
            shutil.rmtree(output.with_name(f".{output.name}.partial"), ignore_errors=True)
        return found.model_copy(update={"probe": probe})

    def sweep(self) -> None:
        """Remove the artifacts of trials that were killed."""
        for path in self.work.iterdir():
            if _TRIAL.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def clean(self) -> None:
        """Remove the models with fewer layers at the end of the search, since they may take gigabytes."""
        for path in self.work.iterdir():
            if _FIRST.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _first_layers(self, layers: int) -> tuple[Path, int]:
        return first_layers(
            self.gguf, layers, self.layers, lambda count: self.work / FIRST_LAYERS.format(count), self.target
        )


def _in_a_process(request: TrialRequest, seconds: float) -> Measured:
    """Run a trial in a process of its own, which Core ML may kill."""
    try:
        return Measured.model_validate_json(child_answer(MODULE, (request.model_dump_json(),), seconds))
    except StorageError as error:
        # The disk is not the candidate's fault, and every other candidate would fail too.
        raise StorageError(f"{error}; make room and run it again, or choose another --work") from None
    except AnespecError as error:
        return Measured(probe=request.probe, refusal=f"its process failed: {error}")
    except ValidationError:
        return Measured(probe=request.probe, refusal="its process gave no readable answer")
