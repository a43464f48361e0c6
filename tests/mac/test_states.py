"""Core ML's states: zero at the start, every number kept, and untouched where a pass writes nothing."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from mac_core_ml import Built, CoreMLHere, Record

from anespec.manifests.channel_layout import shape_at
from anespec.manifests.schema import KVForm, LayerShard, Shapes
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.library import ComputeUnits, LoadedModel

IN_GRAPH = [KVForm.REREAD, KVForm.BLENDED, KVForm.SLICE_UPDATE, KVForm.PACKED]
"""Forms whose masks of zeros write nothing."""

EDGES = np.array([0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 2.0**-14, 1 / 3], np.float16)
"""Numbers that a state must keep: zeros of both signs, the largest, the smallest normal one."""

SUBNORMAL = np.float16(2.0**-20)


@pytest.fixture(params=IN_GRAPH)
def loaded(
    request: pytest.FixtureRequest, core_ml: CoreMLHere, built: Built, tmp_path: Path
) -> Iterator[tuple[LoadedModel, LayerShard, Artifact]]:
    """The first layer's shard in one form of K/V, on the CPU alone."""
    artifact = built(kv_form=request.param, shapes=Shapes.STATIC)
    shard = artifact.manifest.layer_shards[0]
    compiled = core_ml.library.compile(artifact.shard_path(shard), tmp_path / "shard.mlmodelc")
    yield core_ml.library.load(compiled, None, ComputeUnits.CPU_ONLY), shard, artifact


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    """fp16 numbers of every size with the edges among them, as fp32, which `write_state` takes."""
    drawn = np.random.default_rng(3).normal(size=shape).astype(np.float16)
    drawn.reshape(-1)[: len(EDGES)] = EDGES
    return drawn.astype(np.float32)


@pytest.mark.fast_only("reread-Core ML")
def test_states_begin_as_zeros_and_keep_what_is_written(
    loaded: tuple[LoadedModel, LayerShard, Artifact], record_property: Record
) -> None:
    model, shard, _ = loaded
    state, other = model.make_state(), model.make_state()
    for spec in shard.states:
        assert not state.read_state(spec.name).any()
        state.write_state(spec.name, numbers(spec.shape))
        kept = state.read_state(spec.name).astype(np.float16)
        assert (kept.view(np.uint16) == numbers(spec.shape).astype(np.float16).view(np.uint16)).all()
        assert not other.read_state(spec.name).any(), "one sequence's state is another's"
        state.write_state(spec.name, np.full(spec.shape, SUBNORMAL, np.float32))
        flushed = not (state.read_state(spec.name) == np.float32(SUBNORMAL)).all()
        record_property("subnormal numbers become zero", flushed)


def test_a_pass_that_writes_nothing_leaves_states_alone(
    loaded: tuple[LoadedModel, LayerShard, Artifact],
) -> None:
    model, shard, artifact = loaded
    state = model.make_state()
    for spec in shard.states:
        state.write_state(spec.name, numbers(spec.shape))
    rows = artifact.manifest.block
    inputs = {spec.name: np.zeros(shape_at(spec.shape, rows), np.float32) for spec in shard.inputs}
    for _ in range(3):
        model.predict(inputs, state)
    for spec in shard.states:
        # -0 + 0 is 0, so zeros are compared as numbers.
        assert (state.read_state(spec.name) == numbers(spec.shape)).all()
