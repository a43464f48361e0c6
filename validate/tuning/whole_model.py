"""The best candidate and the defaults, converted whole and timed: what a search only adds up from shards."""

from collections.abc import Callable
from typing import Literal

from anespec.manifests.schema import Count, Record
from anespec.system.errors import StorageError
from anespec.validate.tuning.candidates import Candidate
from anespec.validate.tuning.search import Found, Trial, pass_milliseconds
from anespec.validate.tuning.workbench import Milliseconds, Probe, Workbench, Workload


class PassComparison(Record):
    """A pass of the whole model with so many rows: as its shards add up, and as it was measured."""

    rows: Count
    predicted: Milliseconds
    measured: Milliseconds


class WholeModel(Record):
    """A candidate converted whole. `predicted` and `measured` are the seconds of the workload.

    Where it was not measured, `why_not` says why, and there are no `passes`. No gate has judged it whole: its
    largest shard passed them, and `anespec validate` judges what `anespec convert` makes.
    """

    which: Literal["best", "defaults"]
    candidate: Candidate
    predicted: float
    measured: float | None = None
    passes: tuple[PassComparison, ...] = ()
    why_not: str | None = None


def measure_whole(
    found: Found,
    workbench: Workbench,
    workload: Workload,
    on_whole: Callable[[Candidate], None] = lambda _: None,
) -> tuple[WholeModel, ...]:
    """The best candidate, and the defaults where they are others and run; what fails says so in its place."""
    best, defaults = found.best, found.trials[0]
    on_whole(best.candidate)
    models = [_whole("best", best, workbench, workload)]
    if defaults.measured.usable and defaults.candidate != best.candidate:
        on_whole(defaults.candidate)
        models.append(_whole("defaults", defaults, workbench, workload))
    return tuple(models)


def _whole(
    which: Literal["best", "defaults"], trial: Trial, workbench: Workbench, workload: Workload
) -> WholeModel:
    candidate, layers = trial.candidate, sum(trial.topology)
    unmeasured = WholeModel(which=which, candidate=candidate, predicted=trial.seconds)
    try:
        measured = workbench.measure(Probe(candidate=candidate, layers=layers, whole=True))
    except StorageError as error:
        # The search is done, and what it found is worth more than this.
        return unmeasured.model_copy(update={"why_not": str(error)})
    if not measured.usable:
        return unmeasured.model_copy(update={"why_not": measured.why_not})
    times = pass_milliseconds((layers,), measured, candidate.block)
    return unmeasured.model_copy(
        update={
            "measured": workload.seconds(candidate.block, candidate.prefill_block or candidate.block, times),
            "passes": tuple(
                PassComparison(rows=rows, predicted=trial.milliseconds[rows], measured=milliseconds)
                for rows, milliseconds in times.items()
            ),
        }
    )
