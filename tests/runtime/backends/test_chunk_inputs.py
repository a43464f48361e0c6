"""The inputs of recurrent layers, and artifacts of theirs that are opened for fewer sequences."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converting import build_once
from family_files import FAMILIES
from hypothesis import given
from hypothesis import strategies as st
from once import Once

from anespec.manifests.known_hashes import KnownHashes
from anespec.manifests.schema import KVCacheGroup, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.backends.pass_inputs import ChunkPlaces, PassInputs
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.verifier import shape_of
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind, Verifier
from anespec.runtime.proven import Proven
from anespec.runtime.rows import chain_rows, pad_rows

CHUNK, REGIONS = 8, 3
POOL = KVCacheGroup(
    name="chunk",
    slots=CHUNK * REGIONS,
    region_slots=CHUNK,
    mask_input="places",
    write_input="write",
    reads="chunk",
    live_input="live",
)


@st.composite
def passes(draw: st.DrawFn) -> np.ndarray:
    """Homes of a pass: for some regions consecutive slots of a chunk, in lanes of any order, and pads."""
    slots: list[int] = []
    for region in range(REGIONS):
        first = draw(st.integers(0, CHUNK - 1))
        count = draw(st.integers(0, CHUNK - first))
        slots += range(region * CHUNK + first, region * CHUNK + first + count)
    pads = draw(st.integers(0 if slots else 1, 4))
    return np.array(draw(st.permutations([*slots, *[-1] * pads])), np.int32)


@given(st.lists(passes(), min_size=1, max_size=4))
def test_rows_find_their_places_and_only_what_runs_is_live(several: list[np.ndarray]) -> None:
    inputs = ChunkPlaces(POOL)
    for homes in several:
        places, live = inputs.of(homes)
        assert places.shape == (1, REGIONS, len(homes), CHUNK)
        assert live.shape == (1, CHUNK * REGIONS)
        for lane, home in enumerate(homes):
            found = [*zip(*np.nonzero(places[0, :, lane]), strict=True)]
            assert found == ([] if home < 0 else [divmod(home, CHUNK)])
        for slot in range(CHUNK * REGIONS):
            behind = [home for home in homes if home >= slot and home // CHUNK == slot // CHUNK]
            assert live[0, slot] == bool(behind)
        assert {*np.unique(places)} | {*np.unique(live)} <= {0, 1}


def hybrid(once: Once, folder: Path, **options: Any) -> Path:
    given = {"target": Target.CPU, "context": 256, "sequences": 2, "weights": WeightChoice(WeightFormat.FP16)}
    return build_once(once, FAMILIES / "granitehybrid.gguf", folder / "m.anespec", **given | options)


def test_a_pass_has_every_input_of_the_shards(once: Once, tmp_path: Path) -> None:
    manifest = Artifact(hybrid(once, tmp_path)).manifest
    home = SlotMapping.of(shape_of(manifest))
    rows = [*chain_rows(home, 1, 62, RowKind.PROMPT, [1, 2]), *chain_rows(home, 0, 5, RowKind.PROMPT, [3])]
    rows += pad_rows(rows, 4)
    inputs = PassInputs(manifest).of(rows, np.ones((1, manifest.hyperparameters.d, 4, 1), np.float16))
    for shard in manifest.layer_shards:
        for spec in shard.inputs:
            assert inputs[spec.name].shape == tuple(4 if size is None else size for size in spec.shape)
    (pool,) = [pool for pool in manifest.pools if pool.reads == "chunk"]
    assert np.argwhere(inputs[pool.mask_input]).tolist() == [[0, 0, 2, 5], [0, 1, 0, 62], [0, 1, 1, 63]]
    assert inputs[pool.live_input or ""].sum() == 6 + 64


def text(verifier: Verifier) -> list[int]:
    engine = Engine(verifier, Proven(speculate=False, widths=(4, 64), reuse_prefixes=False))
    prompt = [(7 * i) % 500 + 3 for i in range(70)]
    return [token.id for event in engine.generate(Request(prompt, 70)) for token in event.tokens]


@pytest.mark.slow
def test_an_artifact_of_two_sequences_runs_one_alone(once: Once, tmp_path: Path) -> None:
    """Passes then cover fewer slots of keys and values, and all places of the chunks as before."""
    path = hybrid(once, tmp_path)
    alone = Artifact(path, KnownHashes(), 1)
    whole, one = open_verifier(path, "openvino", 1), open_verifier(alone, "openvino", 1)
    assert (whole.shape.sequences, one.shape.sequences) == (2, 1)
    assert one.shape.whole_spans < whole.shape.whole_spans
    assert circumstances(alone, "openvino", 1).sequences == 1
    assert text(one) == text(whole)
    whole.close()
    one.close()


def test_openvino_writes_rows_of_chunks_in_place(
    once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that a pass only reads do not count against it."""
    ways: list[bool] = []
    real = OpenVINORunner._compile

    def counted(self: OpenVINORunner, in_place: bool) -> None:
        ways.append(in_place)
        real(self, in_place)

    monkeypatch.setattr(OpenVINORunner, "_compile", counted)
    verifier = open_verifier(hybrid(once, tmp_path), "openvino", 1)
    assert ways and all(ways)
    verifier.close()
