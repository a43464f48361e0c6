"""What a self-test asks, what a process found, and what it comes to: plain data, kept as JSON."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint
from anespec.manifests.residency import RuleFinding, ShardComputePlan
from anespec.manifests.schema import AttentionShape, Bytes, Count, Index, KVForm, Record, Shapes, WeightFormat
from anespec.manifests.tuned import TunedChoices
from anespec.manifests.verdicts import ExactnessVerdict, Moment
from anespec.runtime.backends.worker.sharing import Loading
from anespec.system.coreml_errors import known_error
from anespec.system.errors import AnespecError
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.devices.device import DeviceFacts, Units

ModelSize = Literal[
    "tiny", "small", "layer", "full", "embedded", "model", "random-embedded", "random-model"
]  # fmt: skip
"""Random models by their size; `embedded` and the user's `model`, which are trained, and random ones of the
same shapes."""


class Build(Record):
    """An artifact to try: which random model, and the options of its conversion; None for the default."""

    size: ModelSize
    weights: WeightFormat = WeightFormat.INT8_CHANNEL
    kv_form: KVForm | None = None
    shapes: Shapes | None = None
    range_default: RangeDefault | None = None
    reshape_hint: ReshapeHint | None = None
    attention: AttentionShape | None = None
    layout: ChannelLayout | None = None
    block: Count = 4
    context: Count = 512
    sequences: Count = 1
    topology: tuple[Count, ...] | None = None

    @property
    def name(self) -> str:
        """Of the folders that hold its artifact and what is compiled of that."""
        parts = [self.size, self.weights.value]
        for value in (self.kv_form, self.shapes, self.attention, self.layout):
            parts.append(str(value) if value is not None else "default")
        for name in ("range_default", "reshape_hint"):
            parts += [f"{name}_{value}"] if (value := getattr(self, name)) is not None else []
        parts += [f"t{self.block}", f"s{self.context}", f"n{self.sequences}"]
        parts += ["+".join(map(str, self.topology))] if self.topology else []
        return "-".join(parts)


class Trial(Record):
    """One thing to try, in a process of its own. `step` is the step that knows how.

    `name` is its own within the step; `repeat` says which of several runs of the same it is.
    """

    step: str
    name: str
    build: Build
    units: Units = Units.DEVICE
    rows: Count | None = None
    repeat: Index = 0
    needs_bytes: Bytes = Field(default=0, description="free disk without which it is not tried")

    @property
    def key(self) -> str:
        """Its name among all trials; a file's name too."""
        return f"{self.step}.{self.name}"


Route = Literal["library", "worker"]
"""Who ran a pass: the device's library (coremltools on a Mac) in the trial's process, or a native worker."""


class PassTime(Record):
    """How long passes of `rows` rows over `slots` slots took, in milliseconds."""

    rows: Count
    slots: Count
    units: Units
    median_ms: float = Field(ge=0)
    least_ms: float = Field(ge=0)
    count: Count
    through: Route = "library"


class FirstUse(Record):
    """What a process waits for before its first pass of `rows` rows is done, in seconds.

    `load_seconds` is 0 where an earlier width loaded the same function, or, in the worker, all of them.
    """

    rows: Count
    load_seconds: float = Field(ge=0)
    first_seconds: float = Field(ge=0)
    through: Route = "library"

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.load_seconds + self.first_seconds


class Comparison(Record):
    """Outputs beside those of the torch table, of the same machine's processor, or of the device without
    the worker.

    The cosine and the error are those of the worst row; the error is relative to what the layers add.
    """

    name: str
    against: Literal["torch", "cpu", "device"]
    cosine: float
    error: float = Field(ge=0)
    not_finite: Index


class Check(Record):
    """Something that holds or not; `detail` says what was seen where not, `severity` how bad that is."""

    name: str
    held: bool
    detail: str = ""
    severity: Level = Level.FAIL


class Digest(Record):
    """SHA-256 of outputs' bits, to be compared with those of another process."""

    name: str
    sha256: str


class WorkerFacts(Record):
    """What the native worker did: bytes of outputs of its passes, how many of them were copied since Core ML
    had not put them where it was asked to, its memory, and the device's time of a pass without it."""

    build_seconds: float = Field(ge=0)
    written_bytes: Bytes
    copied_bytes: Bytes
    resident_bytes: Bytes
    median_ms_without: float = Field(ge=0)


class BackendAdvice(Record):
    """What should run models here: a name that --backend takes, and why."""

    backend: str
    because: str


class Failure(Record):
    """Why a trial is not done: what it was doing, what was said, what that means and what to do."""

    stage: str
    text: str
    meaning: str | None = None
    mend: str | None = None
    code: str | None = Field(default=None, description="Core ML's, e.g. -14")


class LoadingAdvice(Record):
    """Whether workers should load together or in turn, as --worker-loading takes it, and why."""

    loading: Loading
    because: str


class Measured(Record):
    """All that a trial found; what it did not look at is None or empty."""

    compile_seconds: float | None = None
    load_seconds: float | None = None
    first_seconds: float | None = Field(default=None, description="of the first prediction")
    first_uses: tuple[FirstUse, ...] = Field(default=(), description="of each width, in this process")
    weight_bytes: Bytes | None = None
    largest_shard_bytes: Bytes | None = None
    memory_bytes: Bytes | None = Field(default=None, description="what loading and running added")
    processes: tuple[Bytes, ...] = Field(default=(), description="weights in each, of a whole artifact")
    predicted: ShardComputePlan | None = None
    rule_findings: tuple[RuleFinding, ...] = ()
    planned: ShardComputePlan | None = None
    no_plan: str | None = Field(default=None, description="why there is no plan")
    times: tuple[PassTime, ...] = ()
    predicted_ms: float | None = Field(default=None, description="of a pass, by the cost model")
    comparisons: tuple[Comparison, ...] = ()
    checks: tuple[Check, ...] = ()
    digests: tuple[Digest, ...] = ()
    exactness: ExactnessVerdict | None = None
    worker: WorkerFacts | None = None
    baseline: Failure | None = Field(
        default=None, description="why the same on the CPU alone is missing; it says nothing of the device"
    )


class Outcome(StrEnum):
    """How a trial's process ended. `lost`: the whole machine or self-test ended while it ran. `no room`: the
    disk did not suffice, which says nothing of the device; the next run tries it.
    """

    DONE = "done"
    ERROR = "error"
    KILLED = "killed"
    HUNG = "hung"
    LOST = "lost"
    NOT_HERE = "not here"
    NO_ROOM = "no room"

    @property
    def broke(self) -> bool:
        """Whether something is wrong with what was tried."""
        return self not in (Outcome.DONE, Outcome.NOT_HERE, Outcome.NO_ROOM)


class TrialRecord(Record):
    """A trial and what became of it."""

    trial: Trial
    outcome: Outcome
    seconds: float = Field(ge=0)
    measured: Measured = Measured()
    failure: Failure | None = None
    cache_bytes: Bytes = Field(default=0, description="disk that the system's caches took meanwhile, about")

    @property
    def done(self) -> bool:
        """Whether it ran to its end."""
        return self.outcome is Outcome.DONE

    @property
    def baseline_failed(self) -> bool:
        """Whether the same could not be run on the CPU alone."""
        return self.measured.baseline is not None


class StepReport(Record):
    """A step: what it asked, its trials and what they come to."""

    id: str
    title: str
    level: Level
    findings: tuple[Finding, ...]
    trials: tuple[TrialRecord, ...]


class SelftestReport(Record):
    """Everything that is sent back. `choices` are None where too little ran to recommend anything."""

    schema_version: Literal[1] = 1
    anespec: str
    started_at: Moment
    seconds: float = Field(ge=0)
    effort: Literal["quick", "full"]
    device: DeviceFacts
    steps: tuple[StepReport, ...]
    cache_bytes: Bytes = Field(default=0, description="disk that the system's own caches took, about")
    ended_early: str | None = Field(default=None, description="why later trials were not run")
    differences: tuple[Finding, ...] = Field(description="where the rules predicted something else")
    choices: TunedChoices | None = None
    advice: BackendAdvice | None = Field(default=None, description="None where no Neural Engine was tried")
    loading: LoadingAdvice | None = Field(default=None, description="None where one process holds all")


def failure_of(error: Exception, stage: str) -> Failure:
    """What was said, and what it means where it is known of Core ML."""
    text = printable(" ".join(str(error).split()) or type(error).__name__, LONGEST_REASON)
    if isinstance(error, AnespecError):
        return Failure(stage=stage, text=text)
    known = known_error(str(error))
    if known is None:
        return Failure(stage=stage, text=f"{type(error).__name__}: {text}")
    return Failure(stage=stage, text=text, meaning=known.meaning, mend=known.fix, code=known.code)
