"""Measure each weight format, form of keys and values, and layout of channel tensors."""

from collections.abc import Sequence
from contextlib import closing

from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.schema import KVForm, WeightFormat
from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench, form_on_cpu
from anespec.validate.selftest.devices.device import DeviceFacts, NotHereError, Units
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import Measured, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, judged, times_text


def measure_variant(trial: Trial, bench: Bench, *, rows: int | None = None) -> Measured:
    """Return the plan of an artifact's first shard, its numbers compared with torch's, and its pass times."""
    found = measure_on_device(trial, bench, rows=rows)
    return bench.with_cpu_times(trial.build, found)


def measure_on_device(trial: Trial, bench: Bench, *, rows: int | None = None) -> Measured:
    """Return the same without the times on the CPU alone."""
    build, width = trial.build, rows or trial.build.block
    planned, no_plan = None, None
    predicted, findings = bench.predicted(build)
    # Loading comes before planning, since planning might warm a cache of the system.
    opened = bench.open(build, Units.DEVICE, rows=width)
    with closing(opened.session) as session:
        try:
            planned = bench.planned(build)
        except NotHereError as error:
            no_plan = str(error)
        compared = bench.against_torch("the hidden state", build, session, rows=width)
        return Measured(
            compile_seconds=opened.compile_seconds,
            load_seconds=opened.load_seconds,
            weight_bytes=session.shard.bytes,
            predicted=predicted,
            rule_findings=findings,
            planned=planned,
            no_plan=no_plan,
            comparisons=(compared,),
            times=(bench.device_time(build, session, width),),
        )


def _format_trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    # With the K/V form of the CPU's baseline each format is converted only once.
    form = scale.kv_form or form_on_cpu(facts.target)
    return tuple(
        Trial(
            step="plans",
            name=weights.value,
            build=scale.isolated(weights=weights, kv_form=form),
            needs_bytes=scale.room_for(scale.main),
        )
        for weights in WeightFormat
    )


def _kv_trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(Trial(step="kv", name=form.value, build=scale.isolated(kv_form=form)) for form in KVForm)


def _layout_trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(
        Trial(step="layout", name=layout.value, build=scale.isolated(layout=layout))
        for layout in ChannelLayout
    )


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    return judged(records, facts, times_text)


PLANS = Step(
    id="plans",
    title="The plan of the shipped package, for each weight format",
    asks="Which formats run on the device, with the right numbers, and how fast?",
    trials=_format_trials,
    run=measure_variant,
    judge=_judge,
)

KV = Step(
    id="kv",
    title="The forms of keys and values",
    asks="Which can be planned, loaded and run, and how fast?",
    trials=_kv_trials,
    run=measure_variant,
    judge=_judge,
)

LAYOUT = Step(
    id="layout",
    title="The layouts of hidden states and logits",
    asks="Is a pass faster with its rows in the last axis, where a single element would be padded?",
    trials=_layout_trials,
    run=measure_variant,
    judge=_judge,
)
