"""Run the steps of a self-test in order; results of earlier steps decide how later ones build."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anespec.validate.findings import Level
from anespec.validate.selftest.bench import on_cpu
from anespec.validate.selftest.devices.device import DeviceFacts
from anespec.validate.selftest.disk import NO_SPACE
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.recommend import usable_form
from anespec.validate.selftest.records import Failure, Outcome, StepReport, Trial, TrialRecord
from anespec.validate.selftest.runner import Run
from anespec.validate.selftest.steps.shapes import SHAPES
from anespec.validate.selftest.steps.step import Step
from anespec.validate.selftest.steps.variants import KV


@dataclass(frozen=True)
class Progress:
    """The progress of a run: the current trial, its number, and its stage.

    `spent` are the seconds since the run began, `left` about those that remain; None if that is not known
    yet.
    """

    step: Step
    trial: Trial
    number: int
    total: int
    stage: str
    spent: float
    left: float | None


class Course:
    """A run of steps: their records and reports so far, and why it ended if the disk was full."""

    def __init__(
        self,
        steps: Sequence[Step],
        scale: Scale,
        facts: DeviceFacts,
        run: Run,
        watch: Callable[[Progress], None],
        ended: Callable[[StepReport], None],
    ) -> None:
        self.records: list[TrialRecord] = []
        self.reports: dict[str, StepReport] = {}
        self.full: str | None = None
        self._steps, self._scale, self._facts, self._run = list(steps), scale, facts, run
        self._watch, self._ended = watch, ended
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def trials(self) -> list[Trial]:
        """Return the trials of the remaining steps, as planned now."""
        return [trial for step in self._steps for trial in step.trials(self._scale, self._facts)]

    def go(self) -> None:
        """Run all steps; raises like Selftest.run."""
        while self._steps:
            step, trials = self._steps[0], self._steps[0].trials(self._scale, self._facts)
            del self._steps[0]
            for number, trial in enumerate(trials):
                self.records.append(self._record(step, trial, [*trials[number:], *self.trials()]))
                self._free(trial, [*trials[number + 1 :], *self.trials()])
            self._report(step)
            if step is KV:
                self._take_usable_form()

    def _free(self, trial: Trial, later: Sequence[Trial]) -> None:
        """Remove what a trial made if no later trial needs it; whole models take gigabytes."""
        if all(other.build.size != trial.build.size for other in later):
            self._run.free(trial.build.size)
        needed = {name for other in later for name in self._made(other)}
        for name in self._made(trial) - needed:
            self._run.free_build(name)

    def _take_usable_form(self) -> None:
        """Use another K/V form in later steps if no shape ran with the default, and try shapes again.

        Then the form failed, such as states on an M5 (mobius#77, B).
        """
        tried = [record for record in self.records if record.trial.step == SHAPES.id]
        if not tried or any(record.done for record in tried):
            return
        form = usable_form(self.records, self._facts)
        if form is not None:
            self._scale = self._scale.model_copy(update={"kv_form": form})
            self._steps.insert(0, SHAPES)

    def _record(self, step: Step, trial: Trial, left: Sequence[Trial]) -> TrialRecord:
        done = len(self.records)
        progress = Progress(
            step, trial, done + 1, done + len(left), "starting", self.seconds, self._expected(left)
        )
        self._watch(progress)
        if not self._run.knows(trial):
            self.full = self.full or self._run.caches.full()
        if self.full is not None and not self._run.knows(trial):
            failure = Failure(stage="starting", text=self.full)
            return TrialRecord(trial=trial, outcome=Outcome.NO_ROOM, seconds=0.0, failure=failure)
        record = self._run.record(trial, lambda stage: self._watch(replace(progress, stage=stage)))
        if record.failure is not None and record.outcome is Outcome.NO_ROOM:
            # A trial that needs more than is free may be followed by smaller ones.
            self.full = record.failure.text if record.failure.code == NO_SPACE else None
        return record

    def _report(self, step: Step) -> None:
        found = tuple(record for record in self.records if record.trial.step == step.id)
        findings = tuple(step.judge(found, self._facts))
        report = StepReport(
            id=step.id,
            title=step.title,
            level=Level.deciding((finding.level for finding in findings), Level.NOT_HERE),
            findings=findings,
            trials=found,
        )
        self.reports[step.id] = report
        self._ended(report)

    def _expected(self, left: Sequence[Trial]) -> float | None:
        """Return about how many seconds the remaining trials take, by the times of finished ones."""
        took = [record for record in self.records if record.seconds]
        if not took:
            return None
        return sum(self._expected_of(trial, took) for trial in left if not self._run.knows(trial))

    def _expected_of(self, trial: Trial, took: Sequence[TrialRecord]) -> float:
        size = trial.build.size
        for similar in (
            [r for r in took if r.trial.build.size == size and r.trial.step == trial.step],
            [r for r in took if r.trial.build.size == size],
        ):
            if similar:
                return sum(record.seconds for record in similar) / len(similar)
        weights = sum(self._weight(record.trial) for record in took)
        return sum(record.seconds for record in took) * self._weight(trial) / weights

    def _weight(self, trial: Trial) -> int:
        return self._scale.bytes_of(trial.build.size)

    def _made(self, trial: Trial) -> set[str]:
        """Return the names of the builds that a trial makes: its own, and the one for the CPU alone."""
        return {trial.build.name, on_cpu(trial.build, self._facts.target).name}
