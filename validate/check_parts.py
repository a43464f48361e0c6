"""The parts of a background check: the gates without a verdict on a running artifact, and their reports."""

from enum import StrEnum

from pydantic import Field

from anespec.manifests.schema import Index, Record
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessVerdict, Invariance, RunEnvironment
from anespec.runtime.passes import VerifierShape
from anespec.runtime.proven import Proven
from anespec.validate.costs import CostVerdict, kept_costs
from anespec.validate.gates import has_size, source_places
from anespec.validate.golden.figures import require_golden
from anespec.validate.kept import kept_exactness, kept_residency, recorded_golden
from anespec.validate.opening import Opening
from anespec.validate.residency.compute_plan import neural_engine


class Part(StrEnum):
    """A part of a check; the parts run in this order."""

    GOLDEN = "golden"
    EXACTNESS = "exactness"
    COSTS = "costs"
    RESIDENCY = "residency"

    @property
    def steps(self) -> int:
        """Return the number of steps of the part: exactness has one for each invariance."""
        return len(Invariance) if self is Part.EXACTNESS else 1

    @property
    def weight(self) -> int:
        """Return about how long the part takes, relative to the others."""
        return WEIGHTS[self]


WEIGHTS = {Part.GOLDEN: 8, Part.EXACTNESS: 9, Part.COSTS: 2, Part.RESIDENCY: 1}


class CheckAsked(Opening):
    """The job of a check's process: the artifact, its backend, and the parts to run."""

    parts: tuple[Part, ...]

    @property
    def steps(self) -> int:
        """Return the number of steps of a whole check, the same for every model."""
        return sum(part.steps for part in Part)

    @property
    def steps_before(self) -> int:
        """Return the number of steps of the parts that need not run, which count as done."""
        return self.steps - sum(part.steps for part in self.parts)


class CheckReport(Record):
    """A line that a check's process prints: its progress, and what it has found.

    `done` is the number of finished steps, `share` their part of the time (0 to 1), and `doing` the current
    part. `failure` is how the golden gate failed; the check ends with it. `trouble` is why a part could not
    be run.
    """

    done: Index = 0
    share: float = Field(default=0.0, ge=0, le=1)
    doing: str = ""
    failure: str | None = None
    trouble: str | None = None
    exactness: ExactnessVerdict | None = None
    costs: CostVerdict | None = None


def missing_parts(artifact: Artifact, here: RunEnvironment, shape: VerifierShape) -> tuple[Part, ...]:
    """Return the parts that have no verdict here and can be run.

    Raises:
        ArtifactError: a verdict is recorded, but for other files than the present ones.
    """
    parts = [Part.GOLDEN] if may_ask_golden(artifact, here) else []
    verdict = kept_exactness(artifact, here, "quick")
    if verdict is None:
        parts += [Part.EXACTNESS, Part.COSTS]
    elif kept_costs(artifact, here, Proven.of(verdict, shape)) is None:
        parts.append(Part.COSTS)
    if kept_residency(artifact, neural_engine()) is None:
        parts.append(Part.RESIDENCY)
    return tuple(parts)


def may_ask_golden(artifact: Artifact, here: RunEnvironment) -> bool:
    """Return whether the golden gate has no verdict here and the GGUF is available."""
    if recorded_golden(artifact, here) is not None:
        return False
    size = artifact.manifest.source.bytes
    return any(path.is_file() and has_size(path, size) for path in source_places(artifact))


def require_no_golden_failure(artifact: Artifact, here: RunEnvironment) -> None:
    """Require that no golden verdict recorded here has failed.

    Raises:
        GoldenGateError: a verdict says that the artifact does not compute what its GGUF means.
    """
    if (verdict := recorded_golden(artifact, here)) is not None:
        require_golden(verdict)
