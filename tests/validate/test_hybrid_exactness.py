"""The exactness gate on artifacts with recurrent layers, and on faults planted in what runs them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_gates import quick_exactness_of
from converting import build_once
from family_files import FAMILIES
from once import Once
from slow import slow_but

from anespec.manifests.schema import ChunkSolve, KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import Invariance
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.backends import verifier as verifiers
from anespec.runtime.backends.pass_inputs import ChunkPlaces
from anespec.runtime.backends.runner import Homes, Tensor
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.kv.folding import FOLDED_BY
from anespec.runtime.passes import StateOverflowError


def converted(once: Once, folder: Path, model: str, **options: Any) -> Artifact:
    """A small artifact of a hybrid."""
    given = {
        "target": Target.CPU,
        "context": 192,
        "weights": WeightChoice(WeightFormat.FP16),
    }
    return Artifact(build_once(once, FAMILIES / f"{model}.gguf", folder / "m.anespec", **given | options))


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "granitehybrid openvino": ("granitehybrid", "openvino", {"sequences": 2}),
    "granitehybrid torch": ("granitehybrid", "torch", {"sequences": 2}),
    "mamba2 openvino": ("mamba2", "openvino", {"sequences": 3}),
    "mamba2 torch": ("mamba2", "torch", {}),
    "qwen35 openvino": ("qwen35", "openvino", {"sequences": 2}),
    "qwen35 torch": ("qwen35", "torch", {}),
    "granitehybrid mlx": ("granitehybrid", "mlx", {"sequences": 2}),
    "qwen35 mlx": ("qwen35", "mlx", {}),
    "mamba2 mlx": ("mamba2", "mlx", {"sequences": 2}),
    "nemotron_h mlx": ("nemotron_h", "mlx", {}),
    "falcon_h1 mlx": ("falcon_h1", "mlx", {"sequences": 2}),
    "falcon_h1 openvino": ("falcon_h1", "openvino", {"sequences": 4, "context": 256}),
    "nemotron_h openvino": ("nemotron_h", "openvino", {"sequences": 2}),
    "granitehybrid blended": ("granitehybrid", "openvino", {"kv_form": KVForm.BLENDED}),
    "granitehybrid slice update": ("granitehybrid", "torch", {"kv_form": KVForm.SLICE_UPDATE}),
    "mamba2 outside torch": ("mamba2", "torch", {"kv_form": KVForm.OUTSIDE}),
    "granitehybrid outside": ("granitehybrid", "openvino", {"kv_form": KVForm.OUTSIDE, "sequences": 2}),
    "qwen35 chunks of 8": ("qwen35", "openvino", {"chunk": 8, "chunk_solve": ChunkSolve.BROADCAST}),
    "qwen35 outside": ("qwen35", "openvino", {"kv_form": KVForm.OUTSIDE, "sequences": 2}),
    "qwen35 outside torch": ("qwen35", "torch", {"kv_form": KVForm.OUTSIDE, "sequences": 2}),
    "mamba2 at position": ("mamba2", "openvino", {"kv_form": KVForm.AT_POSITION}),
    "nemotron_h at position": ("nemotron_h", "openvino", {"kv_form": KVForm.AT_POSITION}),
    "granitehybrid at position torch": ("granitehybrid", "torch", {"kv_form": KVForm.AT_POSITION}),
    "qwen35 at position": ("qwen35", "openvino", {"kv_form": KVForm.AT_POSITION, "sequences": 2}),
    "qwen35 at position torch": ("qwen35", "torch", {"kv_form": KVForm.AT_POSITION}),
}


@pytest.mark.parametrize("case", slow_but(CASES, "granitehybrid openvino"))
def test_a_hybrid_is_proven_exact(case: str, once: Once, tmp_path: Path) -> None:
    model, backend, options = CASES[case]
    artifact = converted(once, tmp_path, model, **options)
    verdict = quick_exactness_of(artifact, backend)
    assert verdict.allows_speculation, [v.detail for v in verdict.invariances]
    assert verdict.circumstances.folded_by == FOLDED_BY
    # How torch multiplies rows of other widths is the machine's own.
    wanted = {4} if backend == "torch" else {4, 8, 16, 32}
    assert wanted <= {*verdict.proven_widths}
    assert verdict.proves(Invariance.REGION) == (artifact.manifest.sequences > 1)


def without_last(real: Callable[..., Any]) -> Callable[..., Any]:
    """The last row of each sequence in a pass is not live."""

    def of(self: ChunkPlaces, homes: Homes) -> tuple[Tensor, Tensor]:
        places, live = real(self, homes)
        for region in {int(home) // self._size for home in homes if home >= 0}:
            last = max(int(home) for home in homes if int(home) // self._size == region)
            live[..., last] = 0
        return places, live

    return of


def in_another_place(real: Callable[..., Any]) -> Callable[..., Any]:
    """Every lane but the first sees one place less of its chunk."""

    def of(self: ChunkPlaces, homes: Homes) -> tuple[Tensor, Tensor]:
        places, live = real(self, homes)
        for lane in np.flatnonzero(homes > 0)[1:]:
            places[0, :, lane] = np.roll(places[0, :, lane], -1, axis=-1)
        return places, live

    return of


def no_fold(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda fold, rows, old: old


def forgetful_fold(real: Callable[..., Any]) -> Callable[..., Any]:
    """The layer folds its chunk and loses what it had."""
    return lambda fold, rows, old: real(fold, rows, np.zeros_like(old))


def dies_out(real: Callable[..., Any]) -> Callable[..., Any]:
    """Every second call does nothing."""
    calls: list[int] = []

    def fold(self: ArtifactVerifier, region: int) -> None:
        calls.append(region)
        if len(calls) % 2:
            real(self, region)

    return fold


def nothing(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *arguments: None


SPECULATIVE_FAULTS = {
    "no fold": (verifiers, "folded", no_fold),
    "every second fold": (ArtifactVerifier, "fold", dies_out),
    "the last row is not live": (ChunkPlaces, "of", without_last),
    "rows in other places": (ChunkPlaces, "of", in_another_place),
    "nothing is cleared": (ArtifactVerifier, "clear_carried", nothing),
}


@pytest.mark.parametrize("fault", slow_but(SPECULATIVE_FAULTS, "the last row is not live"))
def test_planted_faults_forbid_speculation(
    fault: str, once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, plant = SPECULATIVE_FAULTS[fault]
    monkeypatch.setattr(place, name, plant(getattr(place, name)))
    artifact = converted(once, tmp_path, "granitehybrid", sequences=2)
    assert not quick_exactness_of(artifact, "openvino").allows_speculation


@pytest.mark.slow
def test_a_state_that_is_not_copied_forbids_several_sequences(
    once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = converted(once, tmp_path, "granitehybrid", sequences=2)
    monkeypatch.setattr(ArtifactVerifier, "copy_carried", nothing(None))
    verdict = quick_exactness_of(artifact, "openvino")
    assert not verdict.proves(Invariance.REGION)
    assert "its past copied there" in next(
        v.detail for v in verdict.invariances if v.invariance is Invariance.REGION
    )


def test_a_verdict_holds_for_what_folded(once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = converted(once, tmp_path, "granitehybrid", sequences=2)
    here = circumstances(artifact, "torch", 1)
    assert here.folded_by == FOLDED_BY
    assert '"folded_by"' in here.model_dump_json()
    monkeypatch.setattr("anespec.runtime.kv.folding.FOLDED_BY", "numpy 0.1")
    assert circumstances(artifact, "torch", 1) != here


@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch", "openvino"))
def test_carried_states_are_read_written_and_folded_by_region(
    backend: str, once: Once, tmp_path: Path
) -> None:
    artifact = converted(once, tmp_path, "granitehybrid", sequences=2)
    verifier = open_verifier(artifact, backend, 1)
    try:
        check_carried(verifier, artifact)
    finally:
        verifier.close()


def check_carried(verifier: Any, artifact: Artifact) -> None:
    shape, rng = verifier.shape, np.random.default_rng(0)
    assert shape.chunk == artifact.manifest.chunk
    chunk = next(number for number, pool in enumerate(shape.pools) if pool.is_chunk)
    size = shape.chunk

    def noise(values: Sequence[Tensor], scale: float = 1.0) -> list[Tensor]:
        return [(rng.normal(size=value.shape) * scale).astype(np.float16) for value in values]

    def held(region: int) -> list[bytes]:
        return [value.tobytes() for value in verifier.export_carried(region)]

    layers = sum(len(shard.folds) for shard in artifact.manifest.layer_shards)
    assert len(held(0)) == layers
    first, second = noise(verifier.export_carried(0)), noise(verifier.export_carried(0))
    verifier.import_carried(0, first)
    verifier.import_carried(1, second)
    assert held(0) == [value.tobytes() for value in first]
    verifier.copy_carried(1, 0)
    assert held(0) == held(1) == [value.tobytes() for value in second]
    rows = noise(verifier.export_slots(chunk, 0, size), -0.1)
    rows = [-abs(row) for row in rows]
    verifier.import_slots(chunk, size, rows)
    verifier.fold(1)
    assert held(0) == [value.tobytes() for value in second]
    assert all(new != old for new, old in zip(held(1), held(0), strict=True))
    verifier.import_slots(chunk, 0, rows)
    verifier.fold(0)
    assert held(0) == held(1)
    verifier.import_slots(chunk, 0, [np.full_like(row, 60000) for row in rows])
    before = held(0)
    with pytest.raises(StateOverflowError, match="what layer 0 remembers of the text left fp16's range"):
        verifier.fold(0)
    assert held(0) == before
    verifier.clear_carried(1)
    assert not any(value.any() for value in verifier.export_carried(1))
    assert held(0) == before
