"""The report of a search as a file: the options for `convert --tuned`, a preset, and every trial."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from anespec.manifests.presets import MatchedModel, Preset, Provenance
from anespec.manifests.schema import Count, Record, Target, WeightFormat
from anespec.manifests.tuned import ChoiceReason, TunedChoices
from anespec.system.errors import StorageError
from anespec.system.formatting import counted
from anespec.system.grades import Grade
from anespec.system.safe_files import write_atomically
from anespec.validate.tuning.candidates import DEPENDENT, SEARCHED, Candidate
from anespec.validate.tuning.search import Found, Trial, pass_milliseconds
from anespec.validate.tuning.workbench import Measured, Milliseconds, Probe, Workbench, Workload


class PassComparison(Record):
    """A pass of the whole model with `rows` rows: the sum of its shards' times, and the measured time."""

    rows: Count
    predicted: Milliseconds
    measured: Milliseconds


class WholeModel(Record):
    """A candidate converted as a whole. `predicted` and `measured` are the seconds of the workload.

    If it was not measured, `why_not` says why, and `passes` is empty. No gate has judged the whole: its
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
    """Measure the best candidate, and the defaults if they differ and run; a failure is recorded in the
    result."""
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
        # The search is done; its result must not be lost because of this.
        return unmeasured.model_copy(update={"why_not": str(error)})
    if not measured.usable:
        return unmeasured.model_copy(update={"why_not": measured.why_not})
    times = pass_milliseconds((layers,), measured, candidate.block)
    return unmeasured.model_copy(
        update={
            "measured": workload.seconds(candidate, times, measured.fold),
            "passes": tuple(
                PassComparison(rows=rows, predicted=trial.milliseconds[rows], measured=milliseconds)
                for rows, milliseconds in times.items()
            ),
        }
    )


class TrialRecord(Record):
    """A tried candidate; `seconds` of the workload is null if it is unusable."""

    candidate: Candidate
    topology: tuple[Count, ...]
    seconds: float | None
    measured: Measured

    @classmethod
    def of(cls, trial: Trial) -> "TrialRecord":
        """Return the record of a trial."""
        seconds = None if math.isinf(trial.seconds) else trial.seconds
        return cls(
            candidate=trial.candidate, topology=trial.topology, seconds=seconds, measured=trial.measured
        )


@dataclass(frozen=True)
class TunedModel:
    """The model, machine and target of a search."""

    matched: MatchedModel
    machine: str
    target: Target
    context: int


class TuneReport(Record):
    """The report file. `preset` is null if the weights are of several formats, which a preset cannot name.

    `whole` has the predictions for whole models beside their measurements.
    """

    schema_version: Literal[1] = 1
    prompt_tokens: Count
    answer_tokens: Count
    choices: TunedChoices
    preset: Preset | None
    whole: tuple[WholeModel, ...] = ()
    trials: tuple[TrialRecord, ...]

    def write(self, path: Path) -> None:
        """Write the report as a whole or not at all; raises StorageError."""
        try:
            write_atomically(path, self.model_dump_json(indent=2) + "\n")
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be written ({error.strerror}); choose another place"
            ) from error


def tune_report(
    found: Found, whole: tuple[WholeModel, ...], tuned: TunedModel, workload: Workload
) -> TuneReport:
    """Return the report of a search."""
    best = found.best
    chosen = {name: getattr(best.candidate, name) for name in SEARCHED}
    return TuneReport(
        prompt_tokens=workload.prompt_tokens,
        answer_tokens=workload.answer_tokens,
        choices=TunedChoices(
            source="tune",
            machine=tuned.machine,
            measured_at=datetime.now(UTC),
            target=tuned.target,
            model=tuned.matched,
            topology=best.topology,
            provenance=tuple(_reason(name, found) for name in SEARCHED if _applies(name, found)),
            **chosen,
        ),
        preset=_preset(found, whole, tuned),
        whole=whole,
        trials=tuple(map(TrialRecord.of, found.trials)),
    )


def _applies(choice: str, found: Found) -> bool:
    return any(getattr(trial.candidate, choice) is not None for trial in found.trials)


def _reason(choice: str, found: Found) -> ChoiceReason:
    """Return how the best candidate compares with those that differ only in this option."""
    best, others = found.best, []
    for trial in found.trials:
        if _differing(trial.candidate, best.candidate) == {choice}:
            others.append(trial)
    clauses = [
        f"{getattr(trial.candidate, choice)} "
        + (
            trial.measured.why_not or "is unusable"
            if math.isinf(trial.seconds)
            else f"takes {trial.seconds / best.seconds:.2f} times as long"
        )
        for trial in others
    ]
    because = "; ".join(clauses) if clauses else "no other value was tried with it"
    return ChoiceReason(choice=choice, because=because, measured=bool(others))


def _differing(one: Candidate, other: Candidate) -> set[str]:
    """Return the options in which two candidates differ; those of one kind of shapes count if both have
    them."""
    return {
        name
        for name in SEARCHED
        if (values := {getattr(one, name), getattr(other, name)}) and len(values) > 1
        if name not in DEPENDENT or None not in values
    }


def _preset(found: Found, whole: tuple[WholeModel, ...], tuned: TunedModel) -> Preset | None:
    best, model, machine = found.best, tuned.matched, tuned.machine
    try:
        weights = WeightFormat(best.candidate.weights)
    except ValueError:
        return None
    block = best.candidate.block
    name = re.sub(r"[^a-z0-9.]+", "-", f"{model.architecture}-{model.layers}x{model.d}-{machine}".lower())
    return Preset(
        name=name.strip("-"),
        title=f"{model.architecture}, {counted(model.layers, 'layer')} of d {model.d}, on {machine}",
        model=model,
        target=tuned.target,
        weights=weights,
        attention=best.candidate.attention,
        kv_form=best.candidate.kv_form,
        shapes=best.candidate.shapes,
        layout=best.candidate.layout,
        topology=best.topology,
        head_shards=best.candidate.head_shards,
        block=block,
        context=tuned.context,
        provenance=Provenance(
            source="anespec tune",
            grade=Grade.OURS,
            measured=f"{_pass_times(best, whole)} ({best.candidate}); the best of "
            f"{counted(len(found.trials), 'candidate')} by the times of shards, on this one machine",
            machine=machine,
        ),
    )


def _pass_times(best: Trial, whole: tuple[WholeModel, ...]) -> str:
    """Return the time of a pass of the block, and how it was found."""
    rows = best.candidate.block
    added = f"{best.milliseconds[rows]:.1f} ms for a pass of {counted(rows, 'row')}, the sum of its shards"
    taken = [p.measured for model in whole if model.which == "best" for p in model.passes if p.rows == rows]
    return f"{added}, {taken[0]:.1f} ms measured whole" if taken else f"{added}, not measured whole"
