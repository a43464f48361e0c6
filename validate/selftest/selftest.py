"""The whole self-test: every step's trials in order, what they come to, and the report."""

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from anespec import __version__
from anespec.manifests.errors import UsageError
from anespec.validate.selftest.course import Course, Progress
from anespec.validate.selftest.devices import make_device
from anespec.validate.selftest.differences import differences
from anespec.validate.selftest.disk import CACHE_LIMIT, Free, free_disk
from anespec.validate.selftest.recommend import advise, advise_loading, recommend
from anespec.validate.selftest.records import SelftestReport, StepReport
from anespec.validate.selftest.runner import Identity, Run, RunTrial, now, run_in_child
from anespec.validate.selftest.scale import FULL_SCALE, QUICK_SCALE, Scale, shortened
from anespec.validate.selftest.steps import STEPS
from anespec.validate.selftest.steps.step import Step

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
