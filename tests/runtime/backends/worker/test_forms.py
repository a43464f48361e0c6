"""Every form of K/V and all shapes of functions, in workers: the portable backend's bits."""

import os
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from by_hand import rows_for, run_tokens, same_bits, states
from converting import build
from patience import PATIENCE
from tiny_model import TinyModel, write_gguf
from workers import EACH_ALONE, compiled, open_workers

from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.schema import KVForm, Shapes, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_shard, open_verifier
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.runner import WorkerRunner
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.stages import stages_of
from anespec.runtime.passes import StateLostError

PROMPT = [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]
LIMITS = WorkerLimits(pass_seconds=PATIENCE)


@pytest.mark.fast_only("outside-functions-rows_third")
@pytest.mark.parametrize(
    ("kv_form", "shapes", "layout"),
    [
        (KVForm.SLICE_UPDATE, Shapes.RANGE, ChannelLayout.ROWS_THIRD),
        (KVForm.PACKED, Shapes.STATIC, ChannelLayout.ROWS_LAST),
        (KVForm.OUTSIDE, Shapes.FUNCTIONS, ChannelLayout.ROWS_THIRD),
        (KVForm.AT_POSITION, Shapes.FUNCTIONS, ChannelLayout.ROWS_LAST),
    ],
)
def test_kv_held_in_any_form_and_functions_of_any_shapes(
    tmp_path: Path, swift_worker: WorkerProgram, kv_form: KVForm, shapes: Shapes, layout: ChannelLayout
) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel())
    artifact = Artifact(
        build(
            source,
            tmp_path / "m.anespec",
            target=Target.CPU,
            kv_form=kv_form,
            shapes=shapes,
            layout=layout,
            weights=WeightChoice(WeightFormat.FP16),
            head_shards=2,
        ).path
    )
    with (
        closing(open_verifier(artifact, "torch", 1)) as other,
        closing(open_workers(artifact, WorkerLimits(budget=EACH_ALONE), swift_worker)) as verifier,
    ):
        for width in verifier.shape.widths[-2:]:
            assert same_bits(
                run_tokens(verifier, PROMPT, width=width), run_tokens(other, PROMPT, width=width)
            )
        verifier.copy_slots(0, 0, 8, 4)
        other.copy_slots(0, 0, 8, 4)
        for mine, its in zip(states(verifier), states(other), strict=True):
            assert mine.any() and (mine == its).all()
        os.kill(verifier.workers.pids[0], signal.SIGKILL)
        with pytest.raises(StateLostError):
            run_tokens(verifier, PROMPT)
        assert not any(state.any() for state in states(verifier))
    shard = artifact.manifest.layer_shards[0]
    (stage,) = stages_of(artifact.manifest, [shard], {shard.path: compiled(artifact, shard.path)})
    assert stage.bytes == shard.bytes
    block = rows_for(verifier, PROMPT[:4], 20)
    given = PassInputs(artifact.manifest).of(block, np.ones((1, 32, 4, 1), np.float16))
    inputs = {spec.name: given[spec.name] for spec in shard.inputs}
    with (
        closing(WorkerRunner(stage, artifact.manifest, swift_worker, LIMITS)) as own,
        closing(open_shard(artifact, shard, "torch", 1)) as runner,
    ):
        for name in (found := own.run(inputs)):
            assert same_bits(found[name].ravel(), runner.run(inputs)[name].ravel())
        for spec in shard.states:
            assert same_bits(own.read_state(spec.name), runner.read_state(spec.name))
