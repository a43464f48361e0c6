"""The whole self-test: every step's trials in order, what they come to, and the report."""

import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from anespec import __version__
from anespec.manifests.errors import UsageError
from anespec.validate.findings import Level
from anespec.validate.selftest.device import Device
from anespec.validate.selftest.devices import make_device
from anespec.validate.selftest.differences import differences
from anespec.validate.selftest.recommend import advise, recommend
from anespec.validate.selftest.records import SelftestReport, StepReport, Trial, TrialRecord
from anespec.validate.selftest.runner import Identity, Run, RunTrial, now, run_in_child
from anespec.validate.selftest.scale import FULL_SCALE, QUICK_SCALE, Scale, shortened
from anespec.validate.selftest.steps import STEPS
from anespec.validate.selftest.steps.step import Step

LAYERS_WITHOUT_ENGINE = 2
"""Of the full model where there is no Neural Engine: enough to see that it runs."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: the trial at work, by its number, and what it is doing."""

    step: Step
    trial: Trial
    number: int
    total: int
    stage: str


@dataclass(frozen=True)
class Selftest:
    """What is to be run: which steps, at which scale, on which device, in which folder."""

    folder: Path
    device: str
    scale: Scale
    quick: bool
    steps: tuple[Step, ...]
    again: bool = False
    run_trial: RunTrial = run_in_child

    def run(
        self,
        watch: Callable[[Progress], None] = lambda _: None,
        ended: Callable[[StepReport], None] = lambda _: None,
        resumed: Callable[[int, int], None] = lambda _, __: None,
    ) -> SelftestReport:
        """Run what is not yet run, and say what it comes to.

        `resumed` is told how many of how many trials an earlier run left, where it left any.

        Raises:
            StorageError: the folder cannot be used.
            KeyboardInterrupt: what ended is kept, and the next run goes on there.
        """
        began = time.monotonic()
        device: Device = make_device(self.device)
        facts = device.facts()
        identity = Identity(
            anespec=__version__,
            device=self.device,
            machine=facts.machine,
            system=facts.system,
            libraries=facts.libraries,
            scale=self.scale,
            started_at=now(),
        )
        run = Run(self.folder, identity, self.run_trial, again=self.again)
        plans = [(step, step.trials(self.scale, facts)) for step in self.steps]
        left = [trial for _, trials in plans for trial in trials]
        total, number = len(left), 0
        if kept := sum(run.knows(trial) for trial in left):
            resumed(kept, total)
        reports: list[StepReport] = []
        records: list[TrialRecord] = []
        for step, trials in plans:
            found = []
            for trial in trials:
                number += 1
                progress = Progress(step, trial, number, total, "starting")
                watch(progress)
                found.append(run.record(trial, _staged(progress, watch)))
                left = left[1:]
                if all(other.build.size != trial.build.size for other in left):
                    run.free(trial.build.size)
            findings = tuple(step.judge(found, facts))
            report = StepReport(
                id=step.id,
                title=step.title,
                level=Level.worst(finding.level for finding in findings),
                findings=findings,
                trials=tuple(found),
            )
            reports.append(report)
            records += found
            ended(report)
        started_at = run.identity.started_at
        return SelftestReport(
            anespec=__version__,
            started_at=started_at,
            seconds=time.monotonic() - began,
            effort="quick" if self.quick else "full",
            device=facts,
            steps=tuple(reports),
            differences=differences(records, facts),
            choices=recommend(records, facts, self.scale, started_at),
            advice=advise(records, facts),
        )

    def finish(self) -> None:
        """Remove models, artifacts and records, once the report is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _staged(progress: Progress, watch: Callable[[Progress], None]) -> Callable[[str], None]:
    return lambda stage: watch(replace(progress, stage=stage))


def chosen_steps(names: Collection[str]) -> tuple[Step, ...]:
    """The steps of those names, or all, in their order.

    Raises:
        UsageError: there is no step of a name.
    """
    if unknown := sorted(set(names) - {step.id for step in STEPS}):
        known = ", ".join(step.id for step in STEPS)
        raise UsageError(f"there is no step {unknown[0]!r}; the steps are {known}")
    return tuple(step for step in STEPS if not names or step.id in names)


def chosen_scale(quick: bool, layers: int | None, engine: bool) -> Scale:
    """How large the models are: `layers` of the full one, or all, or few where there is no Neural Engine."""
    if quick:
        return QUICK_SCALE
    count = layers or (None if engine else LAYERS_WITHOUT_ENGINE)
    return FULL_SCALE if count is None else shortened(FULL_SCALE, count)
