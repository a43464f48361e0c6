"""Check that states are zero at the start, kept between passes, and unchanged where nothing is written."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.schema import KVForm
from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts, Tensor, Units
from anespec.validate.selftest.devices.session import ShardSession
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import passes
from anespec.validate.selftest.records import Check, Measured, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, judged

TWO_LAYERS = " in two layers"
"""The suffix of trials with two layers. Three states in a shard failed on an iPhone (CoreML-LLM), and the
main model's one layer has only two."""


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    trials = [Trial(step="states", name=form.value, build=scale.isolated(kv_form=form)) for form in KVForm]
    if scale.sizes["small"].layers > scale.sizes[scale.main].layers:
        trials += [
            Trial(
                step="states", name=form.value + TWO_LAYERS, build=scale.isolated(size="small", kv_form=form)
            )
            for form in KVForm
        ]
    return tuple(trials)


def _run(trial: Trial, bench: Bench) -> Measured:
    with closing(bench.open(trial.build, Units.DEVICE).session) as session:
        bench.say("reading and writing states")
        return Measured(
            weight_bytes=session.shard.bytes,
            checks=(_zero_at_start(session), _written(session), _masked(session), _written_by_hand(session)),
        )


def _zero_at_start(session: ShardSession) -> Check:
    other = [name for name in session.state_names if session.read(name).any()]
    return Check(name="states are zero at the start", held=not other, detail=", ".join(other[:3]))


def _written(session: ShardSession) -> Check:
    """Check that rows are written to their home slots only, and kept for the next pass."""
    session.reset()
    one, two = list(passes(session.manifest, session.manifest.block, 2))
    session.run(one)
    first = {name: session.read(name) for name in session.state_names}
    session.run(two)
    block = session.manifest.block
    for name in session.state_names:
        now = session.read(name)
        filled = np.flatnonzero((now != 0).any(axis=(0, 1, 3)))
        if filled.tolist() != list(range(2 * block)):
            return _lost("rows are kept in their home slots", name, filled[: 3 * block])
        if not np.array_equal(_bits(now[:, :, :block]), _bits(first[name][:, :, :block])):
            return Check(
                name="rows are kept in their home slots", held=False, detail=f"{name} changed afterwards"
            )
    return Check(name="rows are kept in their home slots", held=True)


def _lost(check: str, name: str, slots: NDArray[np.intp]) -> Check:
    return Check(name=check, held=False, detail=f"{name} holds something in slots {slots.tolist()}")


def _masked(session: ShardSession) -> Check:
    """Check that slots that no row writes keep their values, bit for bit."""
    session.reset()
    rng = np.random.default_rng(2)
    put = {}
    for state in session.shard.states:
        put[state.name] = rng.uniform(0.5, 2, state.shape).astype(np.float16)
        session.write(state.name, put[state.name])
    (step,) = passes(session.manifest, session.manifest.block, 1)
    session.run(step)
    block = session.manifest.block
    for name, before in put.items():
        now = session.read(name)
        if not np.array_equal(_bits(now[:, :, block:]), _bits(before[:, :, block:])):
            changed = (_bits(now) != _bits(before)).any(axis=(0, 1, 3))[block:].sum()
            return Check(
                name="slots that no row writes stay", held=False, detail=f"{changed} slots of {name} changed"
            )
        if np.array_equal(_bits(now[:, :, :block]), _bits(before[:, :, :block])):
            return Check(name="slots that no row writes stay", held=False, detail=f"{name} was not written")
    return Check(name="slots that no row writes stay", held=True)


def _written_by_hand(session: ShardSession) -> Check:
    """Check that a state reads as it was written, and that the next pass attends to it."""
    session.reset()
    one, two = list(passes(session.manifest, session.manifest.block, 2))
    session.run(one)
    kept = {name: session.read(name) for name in session.state_names}
    expected, _ = session.run(two)
    session.reset()
    for name, value in kept.items():
        session.write(name, value)
        if not np.array_equal(_bits(session.read(name)), _bits(value)):
            return Check(name="what is written is read", held=False, detail=f"{name} reads differently")
    found, _ = session.run(two)
    same = np.array_equal(_bits(found), _bits(expected))
    return Check(name="what is written is read", held=same, detail="the next pass sees something else")


def _bits(array: Tensor) -> NDArray[np.uint16]:
    return np.ascontiguousarray(array).view(np.uint16)


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    return judged(records, facts, lambda record: f"all {len(record.measured.checks)} checks hold")


STATES = Step(
    id="states",
    title="States",
    asks="Are they zero at the start, kept between passes, and unchanged where nothing is written?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
