"""Check mixers that are not attention and a mixture of experts, at the sizes of published models."""

from collections.abc import Sequence

from anespec.manifests.graph_choices import ChunkSolve, KVForm
from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts
from anespec.validate.selftest.inputs.real_sizes import ONE_OF_EACH
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import Measured, ModelSize, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, judged, times_text
from anespec.validate.selftest.steps.variants import measure_variant

OUTSIDE = ", state outside"
"""What the name of a trial ends with if inputs and outputs of the shard hold its states."""

CHUNKS = (
    (32, ChunkSolve.PRODUCTS),
    (16, ChunkSolve.BROADCAST),
    (8, ChunkSolve.BROADCAST),
    (8, ChunkSolve.PRODUCTS),
)
"""The chunks of a gated delta net that are tried beside the default."""


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    changes: list[tuple[str, ModelSize, dict[str, object]]] = [(mixer, mixer, {}) for mixer in ONE_OF_EACH]
    # The state of a mixer is in an MLState beside its rows, or the host holds both.
    for mixer in ONE_OF_EACH:
        if mixer != "mixture":
            changes.append((f"{mixer}{OUTSIDE}", mixer, {"kv_form": KVForm.OUTSIDE}))
    for positions, solve in CHUNKS:
        given = {"chunk": positions, "chunk_solve": solve}
        changes.append((f"delta, chunks of {positions}, {solve}", "delta", given))
    return tuple(
        Trial(
            step="mixers",
            name=name,
            build=scale.isolated(size=mixer, context=min(scale.slots), **given),
            needs_bytes=scale.room_for(mixer),
        )
        for name, mixer, given in changes
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
