"""The whole self-test: every step's trials in order, what they come to, and the report."""

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

# Where the residency rules predicted something else than was measured: what makes the rules better.

_WORDS = {
    Placement.ANE: "on the Neural Engine",
    Placement.GPU: "on the GPU",
    Placement.CPU: "on the CPU",
    Placement.MIXED: "on several devices",
    Placement.REFUSED: "refused",
    Placement.EMPTY: "empty",
}


def differences(records: Sequence[TrialRecord], facts: DeviceFacts) -> tuple[Finding, ...]:
    """One finding per trial of which both are known and differ; one that says so where none is known."""
    if not facts.engine:
        text = "there is no Neural Engine here, so nothing that the rules predict was measured"
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
                    text=f"predicted {_WORDS[expected]}{by}, and it is {_WORDS[seen]}",
                    mend="send the report back, so that the rules can be mended",
                )
            )
    if compared and not found:
        text = f"all {compared} predictions agree with what was measured"
        return (Finding(subject="rules", level=Level.OK, text=text),)
    return tuple(found) or (
        Finding(subject="rules", level=Level.NOT_HERE, text="nothing that the rules predict was measured"),
    )


def measured_placement(record: TrialRecord, facts: DeviceFacts) -> Placement | None:
    """Where a trial's shard was seen to run: by its plan, and by its time where that contradicts the plan."""
    measured = record.measured
    if record.outcome is Outcome.ERROR and record.failure is not None and record.failure.code is not None:
        return Placement.REFUSED
    if not record.done:
        return None
    if falls_back(record, facts):
        return Placement.CPU
    return None if measured.planned is None else placement(measured.planned)


LAYERS_WITHOUT_ENGINE = 2
"""Of the full model where there is no Neural Engine: enough to see that it runs."""


@dataclass(frozen=True)
class Selftest:
    """What is to be run: which steps, at which scale, on which device, in which folder.

    A run ends where the system's caches take more than `cache_limit` bytes of disk, or hardly any is free.
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
        """Run what is not yet run, and say what it comes to.

        `resumed` is told how many of how many trials an earlier run left, where it left any.

        Raises:
            StorageError: the folder cannot be used.
            KeyboardInterrupt: what ended is kept, and the next run goes on there.
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
        """Remove models, artifacts and records, once the report is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


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
