"""A Mac that is none: packages run with torch, plans and times are made up, and faults are planted.

FAULTS in the environment has them as JSON. Each is one that ANE_FACTS knows of.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import Field

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.residency import Device as PlanDevice
from anespec.manifests.residency import ShardComputePlan
from anespec.manifests.schema import Record, Shard, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.portable.package_server import PackagePredictor, PredictorState
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.passes import Verifier
from anespec.validate.residency.prediction import predict
from anespec.validate.residency.shard_view import view_artifact
from anespec.validate.selftest.child import ChildLine, TrialRequest, run_trial
from anespec.validate.selftest.devices.device import (
    DeviceFacts,
    DeviceState,
    NotHereError,
    Prediction,
    Tensor,
    Units,
)
from anespec.validate.selftest.devices.portable import PortableDevice
from anespec.validate.selftest.disk import NO_SPACE
from anespec.validate.selftest.inputs.random_gguf import Sizes
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import Failure, Outcome, TrialRecord
from anespec.validate.selftest.steps import STEPS

DEVICE = "stand_in:StandInDevice"

TINY = Sizes(layers=1, d=32, ff=64, heads=2, kv_heads=1, head_dim=16, vocabulary=300, context=256)
SMALL = Sizes(layers=2, d=64, ff=128, heads=2, kv_heads=1, head_dim=32, vocabulary=300, context=256)
FULL = Sizes(layers=4, d=64, ff=128, heads=2, kv_heads=1, head_dim=32, vocabulary=300, context=256)

SCALE = Scale(
    sizes={"tiny": TINY, "small": SMALL, "full": FULL},
    main="small",
    slots=(64, 128),
    rows=(1, 4, 8, 16),
    topologies=((4,), (2, 2)),
    timed_passes=6,
    repeats=5,
    soak=12,
    silence=60.0,
)


UNTOUCHED = 32
"""Slots that short sequences use."""


class Faults(Record):
    """What goes wrong, by a part of a compiled model's name: `int8-channel`, `slice_update`, `range` …

    `slow` runs on the processor and says so only by its time; `slow_widths` do at other widths than 4.
    """

    refused: tuple[str, ...] = Field(default=(), description="error -14 when it is loaded")
    inference: tuple[str, ...] = Field(default=(), description="0x1d at predict where there are 3 states")
    killed: tuple[str, ...] = Field(default=(), description="the process is killed at the first predict")
    hangs: tuple[str, ...] = Field(default=(), description="the first predict never returns")
    off_plan: tuple[str, ...] = Field(default=(), description="the plan says CPU")
    slow: tuple[str, ...] = ()
    slow_widths: tuple[str, ...] = ()
    reshapes: tuple[str, ...] = Field(default=(), description="made anew at every change of width")
    nan: tuple[str, ...] = ()
    wrong: tuple[str, ...] = Field(default=(), description="numbers that are off, of the right size")
    flushes: bool = False
    forgets: tuple[str, ...] = Field(default=(), description="a pass clears slots that nobody sees")
    unrepeatable: bool = False
    crashes_after: int | None = Field(default=None, description="killed after so many predictions")
    specialises: tuple[str, ...] = Field(default=(), description="two minutes for each width, every time")
    no_states: bool = Field(default=False, description="error -14 where the graph has states, as on an M5")
    wrong_on_cpu: tuple[str, ...] = Field(default=(), description="numbers are off on the CPU alone")
    killed_on_cpu: tuple[str, ...] = Field(default=(), description="killed at the CPU's first predict")
    names: str = Field(default="", description="what an error message says beside itself")


class Killed(BaseException):
    """Stands for the end of the process."""


class Hung(BaseException):
    """Stands for a call that never returns."""


def faults() -> Faults:
    """Those that are planted now."""
    return Faults.model_validate_json(os.environ.get("FAULTS", "{}"))


def planted(**changes: object) -> str:
    """What FAULTS must hold for these."""
    return json.dumps(changes)


@dataclass
class StandInModel:
    """A LoadedModel over torch."""

    predictor: PackagePredictor
    place: str
    units: Units
    faults: Faults
    count: int = 0
    last_rows: int | None = None
    widths: set[int] = field(default_factory=set)

    @property
    def states(self) -> Mapping[str, tuple[int, ...]]:
        return self.predictor.states

    def make_state(self) -> DeviceState:
        return self.predictor.make_state()

    def _has(self, parts: tuple[str, ...], units: Units = Units.DEVICE) -> bool:
        return self.units is units and any(f"-{part}-" in f"-{self.place}-" for part in parts)

    def predict(self, inputs: Mapping[str, Tensor], state: DeviceState | None) -> Prediction:
        self._break()
        self.count += 1
        own = state if isinstance(state, PredictorState) else None
        before = {name: own.read(name) for name in self.states} if own is not None else {}
        outputs = dict(self.predictor.predict(inputs, own))
        if self.units is Units.DEVICE and own is not None:
            self._spoil_states(own, before)
        for name, value in outputs.items():
            if self._has(self.faults.nan):
                value[..., 0, 0] = np.nan
            if self._has(self.faults.wrong) or self._has(self.faults.wrong_on_cpu, Units.CPU):
                outputs[name] = value[:, ::-1].copy()
            if self.units is Units.DEVICE and self.faults.unrepeatable and self.count % 3 == 0:
                outputs[name] = np.nextafter(value, np.float16(1e4))
        return Prediction(outputs, self._seconds(next(iter(inputs.values())).shape, inputs))

    def _break(self) -> None:
        planted = self.faults
        if self._has(planted.inference) and len(self.states) >= 3:
            raise RuntimeError(f"Unable to compute: ANE inference error status=0x1d {planted.names}".strip())
        limit = planted.crashes_after
        crashed = limit is not None and self.units is Units.DEVICE and self.count >= limit
        killed = self._has(planted.killed) or self._has(planted.killed_on_cpu, Units.CPU)
        if killed or (crashed and "lut4" in self.place):
            if os.environ.get("REALLY"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed
        if self._has(planted.hangs):
            if os.environ.get("REALLY"):
                time.sleep(600)
            raise Hung

    def _spoil_states(self, state: PredictorState, before: Mapping[str, Tensor]) -> None:
        for name, old in before.items():
            now = state.read(name)
            if self.faults.flushes:
                now[np.abs(now) < 6.2e-5] = 0
            if self._has(self.faults.forgets):
                unwritten = (now == old).all(axis=(0, 1, 3))
                unwritten[:UNTOUCHED] = False
                now[:, :, unwritten] = 0
            state.write(name, now)

    def _seconds(self, shape: tuple[int, ...], inputs: Mapping[str, Tensor]) -> float:
        rows = inputs["x"].shape[2]
        slots = inputs["attn_mask"].shape[-1] if "attn_mask" in inputs else 0
        cpu = 0.010 + 0.004 * rows
        slow = self._has(self.faults.slow) or (rows != 4 and self._has(self.faults.slow_widths))
        if self.units is Units.CPU or slow:
            return cpu
        cost = {"lut6": 0.8, "lut4": 0.6, "fp16": 2.0, "outside": 1.05, "packed": 1.02}
        changed, self.last_rows = self.last_rows not in (None, rows), rows
        if changed and self._has(self.faults.reshapes):
            return 2.0
        if rows not in self.widths and self._has(self.faults.specialises):
            self.widths.add(rows)
            return 120.0
        factor = next((share for part, share in cost.items() if part in self.place), 1.0)
        return factor * (0.002 + 1e-6 * slots + (0.0002 * max(0, rows - 8)))

    def close(self) -> None:
        pass


class StandInDevice:
    """See Device."""

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            name="stand-in",
            machine="Apple M4 Max",
            system="macOS 26.1",
            libraries=("coremltools 9.0",),
            target=Target.MAC,
            engine=True,
            device="Neural Engine",
            cpu="CPU",
            processors=1,
            memory_bytes=1 << 35,
        )

    def compile(self, package: Path, destination: Path) -> Path:
        return PortableDevice().compile(package, destination)

    def load(self, compiled: Path, units: Units, function: str | None, hint: ReshapeHint) -> StandInModel:
        place = compiled.parent.name
        model = StandInModel(PackagePredictor(compiled, function, "torch"), place, units, faults())
        stateful = faults().no_states and units is Units.DEVICE and bool(model.states)
        if stateful or model._has(faults().refused):
            raise RuntimeError(
                "Error Domain=com.apple.CoreML Code=0 Failed to build the model execution plan using a model "
                f"architecture file with error code: -14. {faults().names}".strip()
            )
        return model

    def plan(self, artifact: Artifact, shard: Shard, compiled: Path) -> ShardComputePlan:
        assert compiled.exists()
        made = predict(view_artifact(artifact), artifact.fingerprint, artifact.manifest.block, rules=())
        plan = next(found for found in made.plan.shards if found.shard == shard.path)
        if any(f"-{part}-" in f"-{artifact.root.stem}-" for part in faults().off_plan):
            off = PlanDevice.CPU
            functions = tuple(
                function.model_copy(
                    update={
                        "operations": tuple(
                            op.model_copy(update={"device": off}) for op in function.operations
                        )
                    }
                )
                for function in plan.functions
            )
            plan = plan.model_copy(update={"functions": functions})
        return plan

    def worker(self, say: Callable[[str], None]) -> WorkerProgram:
        """The one that WORKER names: over its own stand-in for Core ML, with its own faults."""
        if not (path := os.environ.get("WORKER")):
            raise NotHereError("Swift, which builds the worker, is not installed")
        say("1 of 1")
        return WorkerProgram((path,), "by hand", compared=False)

    def built_worker(self) -> WorkerProgram | None:
        """The one of WORKER, where TIMED_BY_WORKER asks for it: else times are made up."""
        return self.worker(lambda _: None) if os.environ.get("TIMED_BY_WORKER") else None

    def open(self, artifact: Artifact) -> Verifier:
        return open_verifier(artifact, "torch", 1)


def inline(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
    """A RunTrial in this process: what would end it ends the trial."""
    told: list[ChildLine] = []

    def tell(line: ChildLine) -> None:
        told.append(line)
        if line.stage is not None:
            say(line.stage)

    ended: Outcome | None = None
    try:
        run_trial(asked, tell)
    except Killed:
        ended = Outcome.KILLED
    except Hung:
        ended = Outcome.HUNG
    stage = next(line.stage for line in reversed(told) if line.stage is not None)
    last = told[-1]
    kept = next((line.kept for line in told if line.kept is not None), None)
    if ended is not None and kept is not None:
        measured = kept.model_copy(update={"baseline": Failure(stage=stage, text="SIGKILL")})
        return TrialRecord(trial=asked.trial, outcome=Outcome.DONE, seconds=0.0, measured=measured)
    if ended is not None:
        failure = Failure(stage=stage, text="SIGKILL" if ended is Outcome.KILLED else "no output for 1 min")
        return TrialRecord(trial=asked.trial, outcome=ended, seconds=0.0, failure=failure)
    if last.measured is not None:
        return TrialRecord(trial=asked.trial, outcome=Outcome.DONE, seconds=0.0, measured=last.measured)
    if last.no_room is not None:
        failure = Failure(stage=stage, text=last.no_room, code=NO_SPACE)
        return TrialRecord(trial=asked.trial, outcome=Outcome.NO_ROOM, seconds=0.0, failure=failure)
    outcome = Outcome.NOT_HERE if last.not_here is not None else Outcome.ERROR
    failure = last.failure or Failure(stage=stage, text=last.not_here or "")
    return TrialRecord(trial=asked.trial, outcome=outcome, seconds=0.0, failure=failure)


def run_steps(
    folder: Path, *ids: str, names: tuple[str, ...] = (), scale: Scale = SCALE
) -> list[TrialRecord]:
    """The records of some steps' trials, or of those called `names` alone."""
    facts = StandInDevice().facts()
    records = []
    for step in STEPS:
        for trial in step.trials(scale, facts) if step.id in ids else ():
            if not names or trial.name in names:
                asked = TrialRequest(trial=trial, scale=scale, device=DEVICE, folder=str(folder))
                records.append(inline(asked, folder, lambda _: None))
    return records


def said(records: list[TrialRecord], step: str) -> dict[str, list[str]]:
    """What a step makes of the records, by subject: `LEVEL: text` each."""
    judge = next(found.judge for found in STEPS if found.id == step)
    found: dict[str, list[str]] = {}
    for finding in judge([r for r in records if r.trial.step == step], StandInDevice().facts()):
        found.setdefault(finding.subject, []).append(f"{finding.level}: {finding.text}")
    return found
