"""Check mixers that are not attention and a mixture of experts, at the sizes of published models."""

from collections.abc import Sequence

from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts
from anespec.validate.selftest.inputs.real_sizes import ONE_OF_EACH
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import Measured, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, judged, times_text
from anespec.validate.selftest.steps.variants import measure_variant


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            step="mixers",
            name=mixer,
            build=scale.isolated(size=mixer, context=min(scale.slots)),
            needs_bytes=scale.room_for(mixer),
        )
        for mixer in ONE_OF_EACH
    )


def _run(trial: Trial, bench: Bench) -> Measured:
    return measure_variant(trial, bench)


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    return judged(records, facts, times_text)


MIXERS = Step(
    id="mixers",
    title="Recurrent layers and experts",
    asks="Do delta nets, Mamba 2, short convolutions and experts run on the device, with the right numbers?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
