"""Run the whole self-test: all steps' trials in order, and the report."""

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from anespec import __version__
from anespec.manifests.residency import Placement
from anespec.system.errors import UsageError
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.course import Course, Progress
from anespec.validate.selftest.devices.choosing import make_device
from anespec.validate.selftest.devices.device import DeviceFacts
from anespec.validate.selftest.disk import CACHE_LIMIT, Free, free_disk
from anespec.validate.selftest.inputs.scale import FULL_SCALE, QUICK_SCALE, Scale, shortened
from anespec.validate.selftest.recommend import advise, advise_loading, recommend
from anespec.validate.selftest.records import Outcome, SelftestReport, StepReport, TrialRecord
from anespec.validate.selftest.runner import Identity, Run, RunTrial, now, run_in_child
from anespec.validate.selftest.steps import STEPS
from anespec.validate.selftest.steps.step import Step, falls_back, placement

_PLACEMENT_TEXT = {
    Placement.ANE: "on the Neural Engine",
    Placement.GPU: "on the GPU",
    Placement.CPU: "on the CPU",
    Placement.MIXED: "on several devices",
    Placement.REFUSED: "refused",
    Placement.EMPTY: "empty",
}


def differences(records: Sequence[TrialRecord], facts: DeviceFacts) -> tuple[Finding, ...]:
    """Return a finding for each trial whose predicted and measured placements differ; they improve the rules.

    If nothing was compared, or all agree, one finding says so.
    """
    if not facts.engine:
        text = "there is no Neural Engine here, so no prediction of the rules was measured"
        return (Finding(subject="rules", level=Level.NOT_HERE, text=text),)
    found, compared = [], 0
    for record in records:
        predicted, seen = record.measured.predicted, measured_placement(record, facts)
        if predicted is None or seen is None:
            continue
        compared += 1
        expected = placement(predicted)
        if expected is not seen:
            rules = sorted({rule for op in predicted.operations for rule in op.rules})
            by = f" by {', '.join(rules)}" if rules else ""
            found.append(
                Finding(
                    subject=record.trial.key,
                    level=Level.WARN,
                    text=f"predicted {_PLACEMENT_TEXT[expected]}{by}, but it is {_PLACEMENT_TEXT[seen]}",
                    mend="send the report back, so that the rules can be corrected",
                )
            )
    if compared and not found:
        text = f"all {compared} predictions agree with what was measured"
        return (Finding(subject="rules", level=Level.OK, text=text),)
    return tuple(found) or (
        Finding(subject="rules", level=Level.NOT_HERE, text="no prediction of the rules was measured"),
    )


def measured_placement(record: TrialRecord, facts: DeviceFacts) -> Placement | None:
    """Return where a trial's shard ran: by its plan, or by its time if that contradicts the plan."""
    measured = record.measured
    if record.outcome is Outcome.ERROR and record.failure is not None and record.failure.code is not None:
        return Placement.REFUSED
    if not record.done:
        return None
    if falls_back(record, facts):
        return Placement.CPU
    return None if measured.planned is None else placement(measured.planned)


LAYERS_WITHOUT_ENGINE = 2
"""The layers of the full model without a Neural Engine; enough to see that it runs."""


@dataclass(frozen=True)
class Selftest:
    """The settings of a self-test: steps, scale, device and folder.

    A run ends if the system's caches take more than `cache_limit` bytes of disk, or if hardly any is free.
    """

    folder: Path
    device: str
    scale: Scale
    quick: bool
    steps: tuple[Step, ...]
    again: bool = False
    run_trial: RunTrial = run_in_child
    cache_limit: int = CACHE_LIMIT
    free_now: Free = free_disk

    def run(
        self,
        watch: Callable[[Progress], None] = lambda _: None,
        ended: Callable[[StepReport], None] = lambda _: None,
        resumed: Callable[[int, int], None] = lambda _, __: None,
    ) -> SelftestReport:
        """Run the trials that have no result yet, and return the report.

        If an earlier run left results, `resumed` is called with their number and the number of all trials.

        Raises:
            StorageError: the folder cannot be used.
            KeyboardInterrupt: results so far are kept, and the next run continues from them.
        """
        facts = make_device(self.device).facts()
        identity = Identity(
            anespec=__version__,
            device=self.device,
            machine=facts.machine,
            system=facts.system,
            libraries=facts.libraries,
            scale=self.scale,
            started_at=now(),
            free_bytes=self.free_now(self.folder),
        )
        run = Run(
            self.folder,
            identity,
            self.run_trial,
            again=self.again,
            cache_limit=self.cache_limit,
            free_now=self.free_now,
        )
        course = Course(self.steps, self.scale, facts, run, watch, ended)
        left = course.trials()
        if kept := sum(run.knows(trial) for trial in left):
            resumed(kept, len(left))
        course.go()
        started_at = run.identity.started_at
        return SelftestReport(
            anespec=__version__,
            started_at=started_at,
            seconds=course.seconds,
            effort="quick" if self.quick else "full",
            device=facts,
            steps=tuple(course.reports.values()),
            cache_bytes=run.caches.taken,
            ended_early=course.full,
            differences=differences(course.records, facts),
            choices=recommend(course.records, facts, self.scale, started_at),
            advice=advise(course.records, facts),
            loading=advise_loading(course.records, facts),
        )

    def finish(self) -> None:
        """Remove models, artifacts and records after the report is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def chosen_steps(names: Collection[str]) -> tuple[Step, ...]:
    """Return the steps of these names, or all, in their order.

    Raises:
        UsageError: a name is not the name of a step.
    """
    if unknown := sorted(set(names) - {step.id for step in STEPS}):
        known = ", ".join(step.id for step in STEPS)
        raise UsageError(f"there is no step {unknown[0]!r}; the steps are {known}")
    return tuple(step for step in STEPS if not names or step.id in names)


def chosen_scale(quick: bool, layers: int | None, engine: bool) -> Scale:
    """Return the sizes of the models: `layers` of the full one, or all, or few without a Neural Engine."""
    if quick:
        return QUICK_SCALE
    count = layers or (None if engine else LAYERS_WITHOUT_ENGINE)
    return FULL_SCALE if count is None else shortened(FULL_SCALE, count)
