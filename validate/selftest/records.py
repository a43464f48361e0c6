"""The trials of a self-test, the results of their processes, and the report: plain data, stored as JSON."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.graph_choices import ChunkSolve, RangeDefault, ReshapeHint
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
    "tiny", "small", "layer", "full", "embedded", "model", "random-embedded", "random-model",
    "delta", "mamba2", "convolution", "mixture",
]  # fmt: skip
"""Random models by size, the trained `embedded` and the user's `model`, random models of their shapes, and
one for each mixer that is not attention, and for a mixture of experts."""


GIVEN = (
    "kv_form",
    "shapes",
    "range_default",
    "reshape_hint",
    "attention",
    "layout",
    "chunk",
    "chunk_solve",
)
"""The options of a conversion for which a build may leave the default."""


class Build(Record):
    """An artifact to try: a model and the options of its conversion; None is the default."""

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
    chunk: Count | None = None
    chunk_solve: ChunkSolve | None = None

    @property
    def given(self) -> dict[str, object]:
        """Return the options of its conversion for which a build may leave the default."""
        values = {name: getattr(self, name) for name in GIVEN}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def name(self) -> str:
        """Return the name of the folders of its artifact and of its compiled shards."""
        parts = [self.size, self.weights.value]
        for value in (self.kv_form, self.shapes, self.attention, self.layout):
            parts.append(str(value) if value is not None else "default")
        for name in ("range_default", "reshape_hint", "chunk", "chunk_solve"):
            parts += [f"{name}_{value}"] if (value := getattr(self, name)) is not None else []
        parts += [f"t{self.block}", f"s{self.context}", f"n{self.sequences}"]
        parts += ["+".join(map(str, self.topology))] if self.topology else []
        return "-".join(parts)


class Trial(Record):
    """One thing to try, in a process of its own, by the step with the id `step`.

    `name` is unique within the step; `repeat` numbers several runs of the same build.
    """

    step: str
    name: str
    build: Build
    units: Units = Units.DEVICE
    rows: Count | None = None
    repeat: Index = 0
    needs_bytes: Bytes = Field(default=0, description="free disk that the trial needs")

    @property
    def key(self) -> str:
        """Return its name among all trials, also used as a file name."""
        return f"{self.step}.{self.name}"


Route = Literal["library", "worker"]
"""What ran a pass: the device's library (coremltools on a Mac) in the trial's process, or a native worker."""


class PassTime(Record):
    """The time of passes of `rows` rows over `slots` slots, in milliseconds."""

    rows: Count
    slots: Count
    units: Units
    median_ms: float = Field(ge=0)
    least_ms: float = Field(ge=0)
    count: Count
    through: Route = "library"


class FirstUse(Record):
    """What a process waits for before its first pass of `rows` rows is done, in seconds.

    `load_seconds` is 0 if an earlier width loaded the same function, or, in the worker, all of them.
    """

    rows: Count
    load_seconds: float = Field(ge=0)
    first_seconds: float = Field(ge=0)
    through: Route = "library"

    @property
    def seconds(self) -> float:
        """Return the sum of both times."""
        return self.load_seconds + self.first_seconds


class Comparison(Record):
    """A comparison of outputs with the torch table, with the CPU, or with the device without the worker.

    The cosine and the error are those of the worst row; the error is relative to what the layers add.
    """

    name: str
    against: Literal["torch", "cpu", "device"]
    cosine: float
    error: float = Field(ge=0)
    not_finite: Index


class Check(Record):
    """A property that holds or not; `detail` says what was seen if not, `severity` how bad that is."""

    name: str
    held: bool
    detail: str = ""
    severity: Level = Level.FAIL


class Digest(Record):
    """The SHA-256 of the bits of outputs, to be compared with those of another process."""

    name: str
    sha256: str


class WorkerFacts(Record):
    """The results of the native worker.

    `written_bytes` are the outputs of its passes; `copied_bytes` those that had to be copied since Core ML
    had not written them to the requested place. `median_ms_without` is the device's time of a pass without
    the worker.
    """

    build_seconds: float = Field(ge=0)
    written_bytes: Bytes
    copied_bytes: Bytes
    resident_bytes: Bytes
    median_ms_without: float = Field(ge=0)


class BackendAdvice(Record):
    """The backend that should run models here, as a value of --backend, and why."""

    backend: str
    because: str


class Failure(Record):
    """Why a trial failed: its stage, the message, the message's meaning and what to do (`mend`)."""

    stage: str
    text: str
    meaning: str | None = None
    mend: str | None = None
    code: str | None = Field(default=None, description="Core ML's, e.g. -14")


class LoadingAdvice(Record):
    """Whether workers should load together or in turn, as a value of --worker-loading, and why."""

    loading: Loading
    because: str


class Measured(Record):
    """All results of a trial; what it did not measure is None or empty."""

    compile_seconds: float | None = None
    load_seconds: float | None = None
    first_seconds: float | None = Field(default=None, description="of the first prediction")
    first_uses: tuple[FirstUse, ...] = Field(default=(), description="of each width, in this process")
    weight_bytes: Bytes | None = None
    largest_shard_bytes: Bytes | None = None
    memory_bytes: Bytes | None = Field(default=None, description="memory that loading and running added")
    processes: tuple[Bytes, ...] = Field(
        default=(), description="bytes of weights in each process, for a whole artifact"
    )
    predicted: ShardComputePlan | None = None
    rule_findings: tuple[RuleFinding, ...] = ()
    planned: ShardComputePlan | None = None
    no_plan: str | None = Field(default=None, description="why there is no plan")
    times: tuple[PassTime, ...] = ()
    predicted_ms: float | None = Field(default=None, description="time of a pass by the cost model")
    comparisons: tuple[Comparison, ...] = ()
    checks: tuple[Check, ...] = ()
    digests: tuple[Digest, ...] = ()
    exactness: ExactnessVerdict | None = None
    worker: WorkerFacts | None = None
    baseline: Failure | None = Field(
        default=None, description="why the times on the CPU alone are missing; no fault of the device"
    )


class Outcome(StrEnum):
    """How a trial's process ended.

    `lost`: the whole machine or self-test ended while it ran. `no room`: there was not enough disk, which is
    no fault of the device; the next run tries the trial again.
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
        """Return whether the trial itself failed."""
        return self not in (Outcome.DONE, Outcome.NOT_HERE, Outcome.NO_ROOM)


class TrialRecord(Record):
    """A trial and its outcome."""

    trial: Trial
    outcome: Outcome
    seconds: float = Field(ge=0)
    measured: Measured = Measured()
    failure: Failure | None = None
    cache_bytes: Bytes = Field(
        default=0, description="about the disk that the system's caches took meanwhile"
    )

    @property
    def done(self) -> bool:
        """Return whether it ran to its end."""
        return self.outcome is Outcome.DONE

    @property
    def baseline_failed(self) -> bool:
        """Return whether the same passes could not run on the CPU alone."""
        return self.measured.baseline is not None


class StepReport(Record):
    """A step with its trials and findings."""

    id: str
    title: str
    level: Level
    findings: tuple[Finding, ...]
    trials: tuple[TrialRecord, ...]


class SelftestReport(Record):
    """Everything that is sent back. `choices` is None if too little ran to recommend anything."""

    schema_version: Literal[1] = 1
    anespec: str
    started_at: Moment
    seconds: float = Field(ge=0)
    effort: Literal["quick", "full"]
    device: DeviceFacts
    steps: tuple[StepReport, ...]
    cache_bytes: Bytes = Field(default=0, description="about the disk that the system's own caches took")
    ended_early: str | None = Field(default=None, description="why later trials were not run")
    differences: tuple[Finding, ...] = Field(
        description="where measurements differ from the rules' predictions"
    )
    choices: TunedChoices | None = None
    advice: BackendAdvice | None = Field(default=None, description="None if no Neural Engine was tried")
    loading: LoadingAdvice | None = Field(default=None, description="None if one process holds all shards")


def failure_of(error: Exception, stage: str) -> Failure:
    """Return the failure of an exception, with its meaning if Core ML's message is known."""
    text = printable(" ".join(str(error).split()) or type(error).__name__, LONGEST_REASON)
    if isinstance(error, AnespecError):
        return Failure(stage=stage, text=text)
    known = known_error(str(error))
    if known is None:
        return Failure(stage=stage, text=f"{type(error).__name__}: {text}")
    return Failure(stage=stage, text=text, meaning=known.meaning, mend=known.fix, code=known.code)
