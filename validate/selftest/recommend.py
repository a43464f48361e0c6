"""Recommend options for this machine, each by itself, from the trials that ran well and with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.presets import find_preset
from anespec.manifests.schema import KVForm, Shapes
from anespec.manifests.tuned import ChoiceReason, TunedChoices
from anespec.runtime.backends import COREML, WORKER
from anespec.runtime.backends.worker.sharing import Loading, usual_loading
from anespec.system.formatting import bytes_text, duration_text
from anespec.validate.selftest.devices.device import DeviceFacts, Units
from anespec.validate.selftest.inputs.scale import FULL, Scale
from anespec.validate.selftest.records import BackendAdvice, LoadingAdvice, Outcome, TrialRecord
from anespec.validate.selftest.steps.shapes import AGAIN, waiting
from anespec.validate.selftest.steps.states import TWO_LAYERS
from anespec.validate.selftest.steps.step import falls_back, sound, time_of
from anespec.validate.selftest.steps.topology import LOADINGS, loading_name
from anespec.validate.tuning.candidates import DEPENDENT, KNOWN
from anespec.validate.tuning.ranking import MUCH_FASTER, Cost, best_of

FREE_ROWS = 1.15
"""A block may have as many rows as a pass takes within this factor of its shortest time."""

Name = TypeVar("Name", bound=str)

PROMPT_ROWS, ANSWER_PASSES = 20_000, 5_000
"""The work that the time of a start is weighed against: about an hour of questions and answers. A minute
at every start then costs as much as 12 ms a pass. No source: chosen here."""

SHAPE_CHOICES = ("shapes", *(name for name, shapes in DEPENDENT.items() if shapes is Shapes.RANGE))
"""The fields of Build and of TunedChoices that a shape of a package sets (see steps.shapes.variants)."""

WIDEST_BLOCK = 8
"""The widest block that is recommended; drafts beyond it are hardly ever right."""

UNTRIED = (
    ChoiceReason(
        choice="attention",
        because="the target's default, since no step tries another; anespec tune does, with your model",
        measured=False,
    ),
    ChoiceReason(
        choice="head_shards",
        because="one, since no step cuts a head in another way; anespec tune does, with your model",
        measured=False,
    ),
    ChoiceReason(
        choice="head_outputs",
        because="logits, since no step finds the best tokens in the head; anespec tune does, with your model",
        measured=False,
    ),
)
"""Choices that keep their defaults, and why."""


class Records:
    """The records of all steps, by step and name."""

    def __init__(self, records: Sequence[TrialRecord], facts: DeviceFacts) -> None:
        self.facts = facts
        self._records = {record.trial.key: record for record in records}

    def get(self, step: str, name: str) -> TrialRecord | None:
        """Return a record; None if the step was not run."""
        return self._records.get(f"{step}.{name}")

    def of(self, step: str) -> list[TrialRecord]:
        """Return the records of a step."""
        return [record for record in self._records.values() if record.trial.step == step]

    def sound(self, step: str, name: str) -> bool:
        """Return whether a trial ran well."""
        record = self.get(step, name)
        return record is not None and sound(record, self.facts)

    def not_spoilt(self, step: str, name: str) -> bool:
        """Return whether a trial ran well or was not run."""
        record = self.get(step, name)
        return record is None or (not record.outcome.broke and (not record.done or sound(record, self.facts)))

    def milliseconds(self, record: TrialRecord, rows: int | None = None) -> float | None:
        """Return the time of a pass on the device."""
        found = time_of(record.measured.times, Units.DEVICE, rows)
        return None if found is None else found.median_ms


def recommend(
    records: Sequence[TrialRecord], facts: DeviceFacts, scale: Scale, measured_at: datetime
) -> TunedChoices | None:
    """Return the choices for this machine; None if nothing ran well enough."""
    found = Records(records, facts)
    reasons: list[ChoiceReason] = []
    choices: dict[str, Any] = {
        "weights": _weights(found, reasons),
        "kv_form": _kv_form(found, reasons),
        "layout": _layout(found, reasons),
        **_shapes(found, reasons),
        **_rows(found, scale, reasons),
        **_topology(found, scale, reasons),
    }
    if not reasons:
        return None
    return TunedChoices(
        source="selftest",
        machine=f"{facts.machine}, {facts.system}",
        measured_at=measured_at,
        target=facts.target,
        provenance=(*reasons, *UNTRIED),
        **{name: value for name, value in choices.items() if value is not None},
    )


def advise(records: Sequence[TrialRecord], facts: DeviceFacts) -> BackendAdvice | None:
    """Return which backend should run models here; None without a Neural Engine or a result."""
    record = Records(records, facts).get("worker", "one shard")
    if record is None or not facts.engine:
        return None
    measured, worker = record.measured, record.measured.worker
    own = time_of(measured.times, Units.DEVICE)
    if worker is None or own is None:
        reason = record.failure.text if record.failure is not None else "it found nothing"
        return BackendAdvice(backend=COREML, because=f"the worker did not run: {reason}")
    if not sound(record, facts):
        return BackendAdvice(backend=COREML, because="the worker does not run as it should here")
    ms = f"{own.median_ms:.2f} ms a pass in the worker, {worker.median_ms_without:.2f} through coremltools"
    times = {WORKER: own.median_ms, COREML: worker.median_ms_without}
    return BackendAdvice(backend=_best(times), because=ms)


def advise_loading(records: Sequence[TrialRecord], facts: DeviceFacts) -> LoadingAdvice | None:
    """Return how workers should load a model of several shards here; None if that was not measured."""
    found = Records(records, facts)
    seconds: dict[Loading, float] = {}
    for loading in LOADINGS:
        record = found.get("topology", loading_name(loading))
        if record is not None and record.done and record.measured.load_seconds is not None:
            seconds[loading] = record.measured.load_seconds
    if not facts.engine or len(seconds) < len(LOADINGS):
        return None
    usual = usual_loading(facts.memory_bytes)
    best = _best({usual: seconds[usual], **seconds})
    times = ", ".join(f"{loading} in {duration_text(spent)}" for loading, spent in seconds.items())
    return LoadingAdvice(loading=best, because=f"all shards of the full model were loaded {times}")


def _weights(found: Records, reasons: list[ChoiceReason]) -> str | None:
    """Return the first format that runs well, not the fastest: random weights show nothing about quality."""
    fine = [
        weights
        for weights in KNOWN.weights
        if found.sound("plans", weights) and found.not_spoilt("repeat", f"soak {weights}")
    ]
    if not fine:
        return None
    times = []
    for weights in fine:
        record = found.get("plans", weights)
        if record is not None and (ms := found.milliseconds(record)) is not None:
            times.append(f"{weights} {ms:.2f} ms")
    before = KNOWN.weights[: KNOWN.weights.index(fine[0])]
    skipped = [str(weights) for weights in before if found.get("plans", weights) is not None]
    why = f"the first that runs well, in the order of quality ({', '.join(times)} a pass)"
    if skipped:
        why = f"{', '.join(skipped)} did not run well here; {why}"
    reasons.append(ChoiceReason(choice="weights", because=why, measured=True))
    return str(fine[0])


def usable_form(records: Sequence[TrialRecord], facts: DeviceFacts) -> KVForm | None:
    """Return the form of K/V to use here, by the trials so far; None if they do not show one."""
    return _kv_form(Records(records, facts), [])


def _kv_form(found: Records, reasons: list[ChoiceReason]) -> KVForm | None:
    usable = [
        form
        for form in KNOWN.kv_form
        if found.sound("kv", form)
        and all(found.not_spoilt("states", form + layers) for layers in ("", TWO_LAYERS))
    ]
    label = _quickest("kv_form", "kv", [str(form) for form in usable], found, reasons, list(KVForm))
    return None if label is None else KVForm(label)


def _layout(found: Records, reasons: list[ChoiceReason]) -> ChannelLayout | None:
    usable = [layout for layout in KNOWN.layout if found.sound("layout", layout)]
    label = _quickest("layout", "layout", usable, found, reasons, list(ChannelLayout))
    return None if label is None else ChannelLayout(label)


def _quickest(
    choice: str,
    step: str,
    names: Sequence[str],
    found: Records,
    reasons: list[ChoiceReason],
    every: Sequence[str],
) -> str | None:
    """Return the first of the names with a timed trial, or a later one that is much faster."""
    records = [(name, found.get(step, name)) for name in names]
    timed = {name: ms for name, r in records if r is not None and (ms := found.milliseconds(r)) is not None}
    if not timed:
        return None
    best = _best(timed)
    why = ", ".join(f"{name} {ms:.2f} ms" for name, ms in timed.items()) + " a pass"
    if min(timed.values()) != timed[best]:
        why += f"; less than {1 - MUCH_FASTER:.0%} faster does not replace a better known choice"
    tried = {record.trial.name for record in found.of(step) if record.outcome is not Outcome.NOT_HERE}
    if others := [str(name) for name in every if name in tried and name not in timed]:
        why += f"; not to be used here: {', '.join(others)}"
    reasons.append(ChoiceReason(choice=choice, because=why, measured=True))
    return best


def _best(times: Mapping[Name, float]) -> Name:
    """Return the name of the first time, or of a later one that is much shorter."""
    return best_of(times, lambda name: Cost(times[name]), MUCH_FASTER)


def _shapes(found: Records, reasons: list[ChoiceReason]) -> dict[str, object]:
    """Return the shape of a package that answers in the least time, including the start; see Work."""
    works: dict[str, tuple[TrialRecord, Work]] = {}
    tried = [record for record in found.of("shapes") if not record.trial.repeat]
    for record in sorted(
        tried, key=lambda record: KNOWN.shapes.index(record.trial.build.shapes or Shapes.RANGE)
    ):
        name, again = record.trial.name, record.trial.name + AGAIN
        if not sound(record, found.facts) or not found.not_spoilt("shapes", again):
            continue
        if (work := _work(record, found.get("shapes", again), found.facts)) is not None:
            works[name] = record, work
    if not works:
        return {}
    best, _ = works[_best({name: work.seconds for name, (_, work) in works.items()})]
    why = ", ".join(f"{name} {work.text}" for name, (_, work) in works.items())
    if left := [record.trial.name for record in tried if record.trial.name not in works]:
        why += f"; not to be used here: {', '.join(left)}"
    reasons.append(ChoiceReason(choice="shapes", because=why, measured=True))
    return {choice: getattr(best.trial.build, choice) for choice in SHAPE_CHOICES}


@dataclass(frozen=True)
class Work:
    """The cost of a start, of a number of prompt rows and of a number of answer passes with one shape.

    One layer shard is measured; for a whole model all parts grow in proportion.
    """

    start: float
    rows_a_second: float
    pass_ms: float

    @property
    def seconds(self) -> float:
        """Return the seconds of all parts together."""
        return self.start + PROMPT_ROWS / self.rows_a_second + ANSWER_PASSES * self.pass_ms / 1000

    @property
    def text(self) -> str:
        """Return the costs as part of a sentence."""
        return (
            f"{duration_text(self.start)} to start, {self.rows_a_second:.0f} rows a second of a prompt, "
            f"{self.pass_ms:.2f} ms a pass"
        )


def _work(record: TrialRecord, again: TrialRecord | None, facts: DeviceFacts) -> Work | None:
    """Return the cost of a shape; a start is taken from a second process, as every later start is one."""
    times = [
        time
        for time in record.measured.times
        if time.units is Units.DEVICE and not falls_back(record, facts, time.rows)
    ]
    if not times:
        return None
    return Work(
        start=waiting(again if again is not None and again.done else record),
        rows_a_second=max(1000 * time.rows / time.median_ms for time in times),
        pass_ms=next((t for t in times if t.rows == record.trial.build.block), times[0]).median_ms,
    )


def _rows(found: Records, scale: Scale, reasons: list[ChoiceReason]) -> dict[str, int | None]:
    """Return the largest block that costs almost nothing, and the narrowest pass that is as fast for
    prompts."""
    times = []
    for rows in scale.rows if scale.judges_rows else ():
        record = found.get("topology", f"{rows} rows")
        if record is not None and sound(record, found.facts):
            time = time_of(record.measured.times, Units.DEVICE, rows)
            times += [time] if time is not None else []
    if len(times) < 2:
        return {}
    shown = ", ".join(f"{t.rows}: {t.least_ms:.2f}" for t in times)
    blocks = [t for t in times if t.rows <= WIDEST_BLOCK]
    block = max(
        (t.rows for t in blocks if t.least_ms <= FREE_ROWS * min(b.least_ms for b in blocks)), default=None
    )
    fastest = max(t.rows / t.least_ms for t in times)
    prefill = min(t.rows for t in times if t.rows / t.least_ms >= MUCH_FASTER * fastest)
    if block is not None:
        because = f"as many rows as cost almost nothing (least ms a pass by rows: {shown})"
        reasons.append(ChoiceReason(choice="block", because=because, measured=True))
    because = (
        f"the narrowest pass that reads a prompt about as fast as any (least ms a pass by rows: {shown})"
    )
    reasons.append(ChoiceReason(choice="prefill_block", because=because, measured=True))
    return {"block": block, "prefill_block": prefill}


def _topology(found: Records, scale: Scale, reasons: list[ChoiceReason]) -> dict[str, object]:
    """Return the first topology that runs well as a whole; for other models, the size of its largest
    shard."""
    # A processor runs shards of any size.
    for topology in scale.topologies if found.facts.engine else ():
        name = "+".join(map(str, topology))
        record = found.get("topology", f"{name} layers")
        if record is None or not sound(record, found.facts):
            continue
        choices: dict[str, object] = {"shard_bytes": (record.measured.largest_shard_bytes or 0) or None}
        whole = scale.sizes["full"]
        ms = found.milliseconds(record)
        because = f"{name} layers run well" + (f", {ms:.1f} ms a pass" if ms is not None else "")
        if whole == FULL:
            phi = find_preset("phi-4-mini")
            choices |= {"topology": topology, "model": phi.model}
            reasons.append(ChoiceReason(choice="topology", because=because, measured=True))
        because += f"; the largest of these shards has {bytes_text(record.measured.largest_shard_bytes or 0)}"
        reasons.append(ChoiceReason(choice="shard_bytes", because=because, measured=True))
        return choices
    return {}
